"""Arrow arrays and tables as trees of plain JSON values, column by column.

Not as Arrow's own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dpflow.ledger.codec import form

_PLAIN: tuple[Callable[[], Any], ...] = (
    *(pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32),
    *(pa.uint64, pa.float32, pa.float64, pa.bool_, pa.null, pa.string),
    *(pa.large_string, pa.binary, pa.large_binary),
)
#: Each type with its arguments, and that as which its values are written, if another.
_TYPES: dict[str, tuple[Callable[..., Any], tuple[str, ...], Any]] = {
    **{str(kind()): (kind, (), None) for kind in _PLAIN},
    "decimal128": (pa.decimal128, ("precision", "scale"), None),
    "date32": (pa.date32, (), pa.int32()),
    "timestamp": (pa.timestamp, ("unit", "tz"), pa.int64()),
}


def packer_of(value: object) -> form.Pack | None:
    """Return what writes an array or a table; None for any other value."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return _pack_array
    return _pack_table if type(value) is pa.Table else None


def _pack_array(packer: form.Packer, array: Any) -> form.Node:
    kind = "Array" if isinstance(array, pa.Array) else "ChunkedArray"
    return form.node(f"pyarrow.{kind}", column=_pack_column(packer, array))


def _pack_column(packer: form.Packer, column: Any) -> form.Node:
    kind = column.type
    if pa.types.is_dictionary(kind):
        # Only the names that stand in it: others may be of rows that were left out.
        values = _pack_column(packer, column.cast(kind.value_type))
        return {"type": "dictionary", "index": str(kind.index_type), "values": values}
    name = str(kind).partition("(")[0].partition("[")[0]
    if name not in _TYPES:
        hint = f"a column of {kind} has no exact text; cast it to numbers or text"
        raise form.unstorable(column, hint)
    _, names, written = _TYPES[name]
    whole = column if written is None else column.cast(written)
    return {
        "type": name,
        "arguments": [getattr(kind, each) for each in names],
        "values": packer.pack_all(whole.to_pylist()),
    }


def _unpack_column(node: form.Node, unpack: form.Unpack) -> Any:
    """Return the array that `_pack_column` was given, in one piece."""
    name = form.member(node, "type", str)
    if name == "dictionary":
        values = _unpack_column(form.member(node, "values", dict), unpack)
        index = _TYPES[form.member(node, "index", str)][0]()
        return values.dictionary_encode().cast(pa.dictionary(index, values.type))
    make, _, written = _TYPES[name]
    kind = make(*form.member(node, "arguments", list))
    values = [unpack(item) for item in form.member(node, "values", list)]
    return pa.array(values, written or kind).cast(kind)


def _pack_table(packer: form.Packer, table: Any) -> form.Node:
    columns = [_pack_column(packer, column) for column in table.columns]
    names = packer.pack_all(table.column_names)
    return form.node("pyarrow.Table", names=names, columns=columns)


def _unpack_table(node: form.Node, unpack: form.Unpack) -> Any:
    columns = [_unpack_column(each, unpack) for each in node["columns"]]
    return pa.Table.from_arrays(columns, names=[*map(unpack, node["names"])])


UNPACKERS: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "pyarrow.Array": lambda node, unpack: _unpack_column(node["column"], unpack),
    "pyarrow.ChunkedArray": lambda node, unpack: pa.chunked_array(
        [_unpack_column(node["column"], unpack)]
    ),
    "pyarrow.Table": _unpack_table,
}
