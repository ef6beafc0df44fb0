"""Arrow arrays and tables as trees of plain JSON values, column by column.

Not as Arrow's own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dpflow.ledger.codec import form

#: Types whose values are Python's own, and whose name says all.
_PLAIN = {
    str(kind): kind
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(), pa.null()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
}


def packer_of(value: object) -> form.Pack | None:
    """Return what writes an array or a table; None for any other value."""
    if isinstance(value, pa.Array):
        return _pack_array
    return {pa.ChunkedArray: _pack_chunked, pa.Table: _pack_table}.get(type(value))


def pack_column(packer: form.Packer, column: Any) -> form.Node:
    """Return the tree of an array, chunked or not."""
    kind = column.type
    if str(kind) in _PLAIN:
        return {"type": str(kind), "values": packer.pack_all(column.to_pylist())}
    if pa.types.is_decimal128(kind):
        node = {"type": "decimal128", "size": [kind.precision, kind.scale]}
        return node | {"values": packer.pack_all(column.to_pylist())}
    if pa.types.is_date32(kind):
        return {"type": "date32", "values": _whole(packer, column, pa.int32())}
    if pa.types.is_timestamp(kind):
        node = {"type": "timestamp", "unit": kind.unit, "zone": kind.tz}
        return node | {"values": _whole(packer, column, pa.int64())}
    if pa.types.is_dictionary(kind):
        # Only the names that stand in it: others may be of rows that were left out.
        names = pack_column(packer, column.cast(kind.value_type))
        return {"type": "dictionary", "index": str(kind.index_type), "values": names}
    hint = f"a column of {kind} has no exact text; cast it to numbers or text"
    raise form.unstorable(column, hint)


def _whole(packer: form.Packer, column: Any, kind: Any) -> list[Any]:
    return packer.pack_all(column.cast(kind).to_pylist())


def unpack_column(node: form.Node, unpack: form.Unpack) -> Any:
    """Return the array that `pack_column` was given, in one piece."""
    name = form.member(node, "type", str)
    if name == "dictionary":
        values = unpack_column(form.member(node, "values", dict), unpack)
        index = _PLAIN[form.member(node, "index", str)]
        return values.dictionary_encode().cast(pa.dictionary(index, values.type))
    values = [unpack(item) for item in form.member(node, "values", list)]
    if name == "decimal128":
        return pa.array(values, pa.decimal128(*form.member(node, "size", list)))
    if name == "date32":
        return pa.array(values, pa.int32()).cast(pa.date32())
    if name == "timestamp":
        kind = pa.timestamp(form.member(node, "unit", str), node["zone"])
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, _PLAIN[name])


def _pack_array(packer: form.Packer, array: Any) -> form.Node:
    return {form.TYPE_KEY: "pyarrow.Array", "column": pack_column(packer, array)}


def _pack_chunked(packer: form.Packer, array: Any) -> form.Node:
    return {form.TYPE_KEY: "pyarrow.ChunkedArray", "column": pack_column(packer, array)}


def _pack_table(packer: form.Packer, table: Any) -> form.Node:
    names = packer.pack_all(table.column_names)
    columns = [pack_column(packer, column) for column in table.columns]
    return {form.TYPE_KEY: "pyarrow.Table", "names": names, "columns": columns}


def _unpack_table(node: form.Node, unpack: form.Unpack) -> Any:
    names = [unpack(name) for name in form.member(node, "names", list)]
    columns = [
        unpack_column(each, unpack) for each in form.member(node, "columns", list)
    ]
    return pa.Table.from_arrays(columns, names=names)


UNPACKERS: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "pyarrow.Array": lambda node, unpack: unpack_column(node["column"], unpack),
    "pyarrow.ChunkedArray": lambda node, unpack: pa.chunked_array(
        [unpack_column(node["column"], unpack)]
    ),
    "pyarrow.Table": _unpack_table,
}
