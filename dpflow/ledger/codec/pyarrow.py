"""Kinds of Arrow: tables column by column.

Not as Arrow's own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dpflow.ledger.codec.kinds import Types, column_parts, register

_PLAIN: tuple[Callable[[], Any], ...] = (
    *(pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64),
    *(pa.float32, pa.float64, pa.bool_, pa.null),
    *(pa.string, pa.large_string, pa.binary, pa.large_binary),
)
_TYPES: Types = {
    **{str(kind()): (kind, (), None) for kind in _PLAIN},
    "decimal128": (pa.decimal128, ("precision", "scale"), None),
    "date32": (pa.date32, (), pa.int32()),
    "time64": (pa.time64, ("unit",), pa.int64()),
    "duration": (pa.duration, ("unit",), pa.int64()),
    "timestamp": (pa.timestamp, ("unit", "tz"), pa.int64()),
}


def _array_parts(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        # Only the names that stand in it: others may be of rows that were left out.
        return ["dictionary", [str(kind.index_type)], array.cast(kind.value_type)]
    name = str(kind).partition("(")[0].partition("[")[0]
    *named, column = column_parts(_TYPES, name, array, kind)
    return [*named, column.to_pylist()]


def _make_array(name: str, arguments: list[Any], values: Any) -> Any:
    if name == "dictionary":
        index = _TYPES[arguments[0]][0]()
        return values.dictionary_encode().cast(pa.dictionary(index, values.type))
    make, _, written = _TYPES[name]
    kind = make(*arguments)
    return pa.array(values, written or kind).cast(kind)


_KINDS: dict[type, Any] = {
    pa.Array: (_array_parts, _make_array),
    pa.ChunkedArray: (
        lambda chunks: [chunks.combine_chunks()],
        lambda array: pa.chunked_array([array]),
    ),
    pa.Table: (
        lambda table: [table.column_names, table.columns],
        lambda names, columns: pa.Table.from_arrays(columns, names=names),
    ),
}
register("pyarrow.", _KINDS, inherited=(pa.Array,))
