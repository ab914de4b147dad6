"""What the connection tests send to each other."""

from __future__ import annotations

import hashlib


def content(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that repeat nowhere within reach, so that a block in the wrong place shows."""
    block = hashlib.shake_128(seed.to_bytes(8, "little")).digest(min(nbytes, 1 << 20))
    whole, rest = divmod(nbytes, len(block)) if block else (0, 0)
    parts = (
        [index.to_bytes(8, "little") + block[8:] for index in range(whole)]
        if whole > 1
        else [block] * whole
    )
    return b"".join([*parts, block[:rest]])
