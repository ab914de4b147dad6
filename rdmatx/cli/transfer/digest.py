"""SHA-256 of a stream, computed on a thread of its own beside the transfer."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol


class Hash(Protocol):
    """What ``hashlib`` gives."""

    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_hash() -> Hash:
    """The hash both sides use."""
    return hashlib.sha256()


class StreamDigest:
    """Hashes pieces in the order they are given; ``hashlib`` drops the GIL while it does.

    Owns one thread, ended by ``close``. A piece must stay as it is until its future is done.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rdmatx-sha256")
        self._hash = new_hash()

    def restart(self) -> None:
        """Begins a new stream; the last one must have been finished."""
        self._hash = new_hash()

    def update(self, piece: memoryview) -> Future[None]:
        """Adds a piece; the future is done when the piece may change again."""
        return self._thread.submit(self._hash.update, piece)

    def finish(self) -> str:
        """Waits for the pieces and gives the digest in hexadecimal."""
        return self._thread.submit(self._hash.hexdigest).result()

    def close(self) -> None:
        """Drops what was not begun, waits for what was, and ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> StreamDigest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
