"""What every command prints: tables and sizes for people, one JSON object a line for programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def emit(record: Mapping[str, Any]) -> None:
    """Prints one JSON object on a line of its own, at once: a program may be waiting for it."""
    print(json.dumps(record), flush=True)


def say(text: str) -> None:
    """Prints a line of the result on stdout, at once."""
    print(text, flush=True)


def note(text: str) -> None:
    """Prints a line for the user on stderr: progress, warnings, errors."""
    print(text, file=sys.stderr, flush=True)


def printable(name: str) -> str:
    """A name from outside, with whatever a terminal would obey written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1000: "90.9 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_size(count: int) -> str:
    """A size of a benchmark as it is asked for, in powers of 1024: "64K"."""
    for unit in ("G", "M", "K"):
        if count and count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]}{unit}"
    return str(count)


def parse_size(text: str) -> int:
    """Reads "8", "64K", "1M", "2G": bytes in powers of 1024. An argparse type."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: write a number of bytes, or one with K, M or G, such as 64K"
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def parse_sizes(text: str) -> list[int]:
    """Reads a list of sizes, "8,64K,1M". An argparse type."""
    return [parse_size(part) for part in text.split(",")]


def parse_seconds(text: str) -> float:
    """Reads a positive number of seconds. An argparse type."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def parse_count(text: str) -> int:
    """Reads a whole number of at least 1. An argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def format_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns aligned with spaces; columns that hold only numbers are aligned to the right."""
    cells = [[str(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(re.fullmatch(r"[-+\d.,]+[KMG]?|-", row[column]) for row in cells)
        for column in range(len(headings))
    ]
    lines = [list(headings), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )
