"""The one byte stream between the runner and the guest: typed, length-prefixed frames.

Both ends import this file, and the guest does so with nothing but the standard library.
One ordered stream for everything makes the end certain: when the EXIT frame is here, all
output is here. The guest lives on behind it, so that the other hosts still reach its kernel,
until the runner ends it.

=========  ==============  ===========================================================
kind       direction       payload
=========  ==============  ===========================================================
READY      guest → runner  empty: the devices are up, the command may start
OUTPUT     guest → runner  bytes of the command's stdout
ERROR      guest → runner  bytes of its stderr
TAKEN      guest → runner  u32: so many bytes more of INPUT may be sent
FAILED     guest → runner  text: why the guest could not be set up
EXIT       guest → runner  u8: the exit status, as a shell gives it
START      runner → guest  empty: every host is ready, start the command
INPUT      runner → guest  bytes for the command's stdin; empty ends it
SIGNAL     runner → guest  u8: a signal for the command's process group
WINDOW     runner → guest  u16 rows, u16 columns
HANGUP     runner → guest  u8: nobody reads stream 1 or 2 any more
=========  ==============  ===========================================================
"""

from __future__ import annotations

import struct

READY, OUTPUT, ERROR, TAKEN, FAILED, EXIT = b"rOETFx"
START, INPUT, SIGNAL, WINDOW, HANGUP = b"SIswH"

INPUT_WINDOW = 2048
"""Bytes of INPUT that may be on their way without a TAKEN.

The guest's serial line holds 4,095 unread bytes. When that fills, the kernel stops listening
to the line and in 6.12 never starts again, so the runner must not let it fill.
"""

INPUT_BACKLOG = 65536
"""Bytes of INPUT that the guest keeps for a command that does not read, before it holds TAKEN."""

_HEADER = struct.Struct("<BI")
_LARGEST = 1 << 20


def encode(kind: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return _HEADER.pack(kind, len(payload)) + payload


class Decoder:
    """Cuts a byte stream into frames; owned by one reader."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that ``data`` completes; raises ``ValueError`` on a broken stream."""
        self._pending += data
        frames: list[tuple[int, bytes]] = []
        start = 0
        while len(self._pending) - start >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._pending, start)
            if size > _LARGEST:
                raise ValueError(f"a frame of {size} bytes: the stream is broken")
            end = start + _HEADER.size + size
            if len(self._pending) < end:
                break
            frames.append((kind, bytes(self._pending[start + _HEADER.size : end])))
            start = end
        del self._pending[:start]
        return frames
