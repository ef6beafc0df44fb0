"""Values as text: how settled releases are stored, without pickle.

`encode` writes canonical JSON, `decode` reads it back to the same value of the same
type; neither ever executes anything that the text names. Plain JSON values stand for
themselves. Everything else is an object with the key "$type":

    tuple, set, frozenset    items
    dict                     pairs, where JSON objects do not do
    bytes                    base64
    int, float, str          huge ints (hex), NaN and infinities, lone surrogates
    date, datetime, time, timedelta, timezone, ZoneInfo, UUID, Decimal, Fraction,
    Estimate

in `plain`, and what is in a part that loads when a value needs it:

    numpy.*                  in `arrays`
    pandas.*                 in `frames`
    polars.*                 in `polars`
    pyarrow.*                in `arrow`
    declared                 dataclasses, enums and pydantic models, in `declared`

Canonical means: one value, one text, whatever the order in which a set or a dict was
filled. So dicts come back with their keys sorted.
"""

from dpflow.ledger.codec.form import MAX_DEPTH, MAX_TEXT, TYPE_KEY
from dpflow.ledger.codec.text import decode, encode

__all__ = ["MAX_DEPTH", "MAX_TEXT", "TYPE_KEY", "decode", "encode"]
