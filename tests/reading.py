"""How hard the pages of a first reading are: sentences, reading ease and words.

    python -m tests.reading [PAGE ...]

Code, tables, headings and pictures are no sentences; a code span is a short word. An
item of a list is a sentence of its own, and a list is one paragraph. A paragraph of
fewer than 20 words has no reading ease.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import takewhile

from tests.projects import ROOT
from tests.test_size import SIZES

PAGES = (
    *("README.md", "quickstart", "concepts", "guarantee", "operations"),
    *(f"tutorial/{path.stem}" for path in (ROOT / "docs/tutorial").glob("*.md")),
    *("why-a-ledger", "year-of-a-report", "when-things-go-wrong"),
)
LONGEST, AVERAGE, EASIEST, SHORTEST = 30, 18, 45, 20
FORBIDDEN = [*takewhile(lambda word: word != "left", SIZES["words"])]
_CODE = re.compile(r"^```.*?^```$|<!--.*?-->|^---\n.*?^---$", re.DOTALL | re.MULTILINE)


def paragraphs(text: str) -> Iterator[list[list[str]]]:
    """Yield the paragraphs of a page: sentences, as words."""
    text = re.sub(r"`[^`]+`", "code", _CODE.sub("", text))
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^ *(?:#|\||<|>).*$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        items = re.split(r"^\s*(?:[-*]|\d+\.)\s", block, flags=re.MULTILINE)
        pieces = [s for item in items for s in re.split(r"(?<=[.!?])[\"*)]*\s+", item)]
        sentences = [re.findall(r"[\w][\w'.,/-]*", piece) for piece in pieces]
        if sentences := [sentence for sentence in sentences if sentence]:
            yield sentences


def ease(sentences: list[list[str]]) -> float:
    """Return the reading ease of a paragraph by Flesch."""
    words = [word.lower() for sentence in sentences for word in sentence]
    vowels = (re.sub(r"(?<=[^aeiouyl])e[sd]?$|\W+$", "", word) for word in words)
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", word))) for word in vowels)
    return 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * syllables / len(words)


def faults(text: str) -> list[str]:
    """Return what is hard to read on a page."""
    blocks = list(paragraphs(text))
    sentences = [sentence for block in blocks for sentence in block]
    words = sum(map(len, sentences))
    long = [" ".join(s) for s in sentences if len(s) > LONGEST]
    lines = [f"{len(s.split())} words in a sentence: {s}" for s in long]
    if words > AVERAGE * len(sentences):
        lines.append(f"{words / len(sentences):.1f} words a sentence on average")
    lines += [
        f"reading ease {ease(block):.0f}: {' '.join(block[0])} ..."
        for block in blocks
        if sum(map(len, block)) >= SHORTEST and ease(block) < EASIEST
    ]
    plain = " ".join(re.sub(r"`[^`]*`", " ", _CODE.sub("", text)).lower().split())
    return lines + [f"'{w}'" for w in FORBIDDEN for _ in re.findall(rf"\b{w}\b", plain)]


def main(names: list[str]) -> int:
    """Print the faults of pages and return their number."""
    count = 0
    for name in names or PAGES:
        path = ROOT / (name if name.endswith(".md") else f"docs/{name}.md")
        lines = faults(path.read_text("utf-8"))
        print(f"{path.relative_to(ROOT)}: {len(lines)}", *lines, sep="\n  ")
        count += len(lines)
    return count


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
