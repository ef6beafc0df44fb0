"""Pages as their readers see them."""

from __future__ import annotations

from html.parser import HTMLParser

from dpflow.config import settings
from dpflow.show.page.facts import read_report
from dpflow.show.page.stamp import make_stamp

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Tree(HTMLParser):
    """Reads a page; notes its elements, its text by place, and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.open, self.wrong = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Check that the last one opened is closed."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        """Note text, and where it stands."""
        if data.strip():
            self.text.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag):
        """Return the attributes of all elements of a kind."""
        return [attrs for name, attrs in self.found if name == tag]

    def words(self, *tags):
        """Return the texts inside elements of some kinds."""
        return [text for place, text in self.text if place in tags]


def report():
    """Return the facts of the project's page, verified."""
    return read_report(settings(), stamp=make_stamp)
