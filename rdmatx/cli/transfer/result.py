"""What came of a transfer: the part of the report that both sides give alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rdmatx.cli.output import format_bytes


@dataclass(frozen=True)
class TransferredFile:
    """One file that the receiver has stored and verified. ``sha256`` is hexadecimal."""

    name: str
    bytes: int
    sha256: str


def summarize(files: Sequence[TransferredFile], seconds: float) -> dict[str, Any]:
    """The files, their bytes and their speed; ``seconds`` from the first record to the last."""
    total = sum(file.bytes for file in files)
    return {
        "files": [asdict(file) for file in files],
        "bytes": total,
        "seconds": round(seconds, 6),
        "gbytes_per_s": round(total / seconds / 1e9, 4),
        "verified": True,
    }


def describe_speed(record: dict[str, Any]) -> str:
    """The last line for people: "90.9 MB in 0.08 s, 1.13 GB/s over rxe0 (system)"."""
    return (
        f"{format_bytes(record['bytes'])} in {record['seconds']:.2f} s, "
        f"{record['gbytes_per_s']:.2f} GB/s over {record['device']} ({record['provider']})"
    )
