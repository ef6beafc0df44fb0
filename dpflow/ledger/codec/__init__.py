"""Values as text: how settled releases are stored, without pickle.

`encode` writes canonical JSON, `decode` reads it back to the same value of the same
type; neither ever executes anything that the text names. Plain JSON values stand for
themselves. Everything else is an object of two members: the name of its kind under
"$type", and under "parts" the parts of the value, each written in turn.

The kinds of the standard library are in `plain`. Those of numpy, pandas, polars and
pyarrow, and of declared classes, are in modules that load when a value needs them.

Canonical means: one value, one text, whatever the order in which a set or a dict was
filled. So dicts come back with their keys sorted, but for those of a release
(`ordered`), whose order is that of its groups.
"""

from dpflow.ledger.codec.kinds import MAX_DEPTH, MAX_TEXT, TYPE_KEY
from dpflow.ledger.codec.text import decode, encode

__all__ = ["MAX_DEPTH", "MAX_TEXT", "TYPE_KEY", "decode", "encode"]
