"""What the elements of a buffer are, by the names that collectives know."""

from __future__ import annotations

from typing import Any

from rdmatx import _C
from rdmatx.errors import UsageError

#: Element types that are reduced, and 8-bit floats, which are moved, by the names of numpy and torch.
_TYPES = {
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
}
#: The same by the formats of memoryview, array and struct, for native sizes.
_FORMATS = {
    "f": "float32",
    "d": "float64",
    "e": "float16",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "l": "int64",
    "q": "int64",
    "B": "uint8",
    "c": "uint8",
    "?": "bool",
}


def type_of(buffer: Any) -> tuple[str, int]:
    """The name of a buffer's element type, and how many elements it has. What is none of the types that
    are reduced counts as bytes."""
    dtype = getattr(buffer, "dtype", None)
    if dtype is not None:
        name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
        count = int(buffer.numel()) if hasattr(buffer, "numel") else int(buffer.size)
        if name in _TYPES:
            return name, count
        if name.startswith("float8"):
            return "float8", count
        size = getattr(buffer, "itemsize", None) or buffer.element_size()
        return "uint8", count * int(size)
    if isinstance(buffer, (_C.Region, _C.RegionPart)):
        return "uint8", int(buffer.nbytes)
    view = memoryview(buffer)
    name = _FORMATS.get(view.format.lstrip("@="), "")
    return (name, view.nbytes // view.itemsize) if name else ("uint8", view.nbytes)


def reduced_type_of(buffer: Any) -> tuple[str, int]:
    """The same of one that is to be reduced."""
    name, count = type_of(buffer)
    dtype = getattr(buffer, "dtype", None)
    own = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if dtype is not None and name == "uint8" and own != "uint8":
        raise UsageError(
            f"elements of {own} are moved, not reduced; those that are: {', '.join(sorted(_TYPES))}"
        )
    return name, count
