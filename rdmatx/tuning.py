"""Which algorithm serves which collective: a table that `rdmatx tune` measures and groups read.

It is the file that `RDMATX_TUNING` names, else `rdmatx/tuning.json` in `XDG_CONFIG_HOME` (else
`~/.config`); without one, groups choose by rules of their own. Rank 0's table holds for its whole
group.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rdmatx.errors import UsageError

__all__ = ["Line", "Table", "default_path", "from_bytes", "load", "to_bytes"]

#: Collective, world, largest number of bytes, algorithm, bytes of a chunk (0: the usual ones).
Line = tuple[str, int, int, str, int]
Table = list[Line]

VERSION = 1
_FIELDS = ("collective", "world", "max_bytes", "algorithm", "chunk_bytes")


def default_path() -> Path:
    """Where the table is that is read without being asked for."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "rdmatx" / "tuning.json"


def load() -> Table:
    """The table of this process; empty where there is none.

    Raises `UsageError` for a file that is no table, or that `RDMATX_TUNING` names and is not there.
    """
    named = os.environ.get("RDMATX_TUNING")
    path = Path(named) if named else default_path()
    try:
        data = path.read_bytes()
    except OSError as error:
        if named:
            raise UsageError(
                f"RDMATX_TUNING names {path}, which cannot be read: {error}"
            ) from error
        return []
    return from_bytes(data, str(path))


def from_bytes(data: bytes, source: str) -> Table:
    """Reads a table, JSON; `source` is what an error calls it. Raises `UsageError`."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, where {VERSION} is known")
        return sorted((_line(entry) for entry in document["lines"]), key=lambda line: line[:3])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source} is no table of algorithms ({error}): make one with `rdmatx tune`, or remove it"
        ) from error


def _line(entry: dict[str, Any]) -> Line:
    collective, world, max_bytes, algorithm, chunk_bytes = (entry[field] for field in _FIELDS)
    texts = isinstance(collective, str) and isinstance(algorithm, str)
    numbers = all(isinstance(n, int) and 0 <= n < 1 << 63 for n in (world, max_bytes, chunk_bytes))
    if not texts or not numbers or not 1 <= world < 1 << 31:
        raise ValueError(f"the line {entry} makes no sense")
    return collective, world, max_bytes, algorithm, chunk_bytes


def to_bytes(table: Table) -> bytes:
    """The table as a file has it."""
    lines = ",\n  ".join(json.dumps(dict(zip(_FIELDS, line, strict=True))) for line in table)
    return f'{{"version": {VERSION}, "lines": [\n  {lines}\n]}}\n'.encode()
