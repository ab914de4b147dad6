"""How the ranks of the connection tests meet, and what they send to each other."""

from __future__ import annotations

import hashlib

import rdmatx
from tests.launch import Rank


def meet(rank: Rank, context: rdmatx.Context) -> rdmatx.Connection:
    """Rank 0 listens and rank 1 connects, within the context's timeout."""
    if rank.index == 0:
        with context.listen("127.0.0.1:0") as listener:
            rank.send(1, listener.address)
            return listener.accept()
    return context.connect(rank.receive(0))


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
