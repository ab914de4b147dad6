"""The sending side: maps files piece by piece, registers the pieces, writes them one-sided."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from rdmatx import Connection, Context, Region, RemoteKey, Work
from rdmatx.cli.errors import CommandError, Interrupted, describe
from rdmatx.cli.output import printable
from rdmatx.cli.transfer.digest import StreamDigest
from rdmatx.cli.transfer.progress import Progress
from rdmatx.cli.transfer.protocol import (
    PROTOCOL,
    VERSION,
    Channel,
    Chunk,
    FileEntry,
    Finish,
    Free,
    Goodbye,
    Hello,
    Ready,
    Stored,
)
from rdmatx.cli.transfer.result import TransferredFile

# Writes under way at a time: the next piece is mapped and hashed while one is on the wire.
WRITES_IN_FLIGHT = 2
# How many written pieces may wait for their hash: with the above, the bound on mapped memory.
HASHES_BEHIND = 4


class Source:
    """A file to send. Owns its descriptor; ``close`` gives it back."""

    def __init__(self, path: str) -> None:
        """Opens ``path``; raises ``CommandError`` unless it is a regular file one may read."""
        self.path = path
        self.name = os.path.basename(os.path.abspath(path))
        try:
            # Without O_NONBLOCK the open of a pipe would wait for its writer.
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CommandError(f"cannot send {path}: {describe(error)}") from error
        status = os.fstat(self.fd)
        self.bytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise CommandError(f"cannot send {path}: it is {kind}; name the files themselves")

    def map(self, offset: int, count: int) -> mmap.mmap:
        """``count`` bytes from ``offset`` on, read-only; ``offset`` is a multiple of the page."""
        # Reading a mapping behind the end of its file kills the process, so look again each time.
        if os.fstat(self.fd).st_size != self.bytes:
            raise CommandError(f"{self.path} changed its size while it was sent")
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return mmap.mmap(self.fd, count, flags=flags, prot=mmap.PROT_READ, offset=offset)

    def close(self) -> None:
        """Gives the descriptor back; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_sources(paths: Sequence[str]) -> list[Source]:
    """Opens all files before anyone is connected to; raises at the first that cannot be sent."""
    sources: list[Source] = []
    try:
        for path in paths:
            source = Source(path)
            sources.append(source)
            for other in sources[:-1]:
                if other.name == source.name:
                    raise CommandError(
                        f"{other.path} and {path} would both be stored as "
                        f"{printable(source.name)}: send them one after the other"
                    )
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


class _Piece:
    """A mapped, registered piece of a file on its way into a slot. Owns both until ``close``."""

    def __init__(self, context: Context, source: Source, offset: int, count: int) -> None:
        self.bytes = count
        self.slot = -1
        self.write: Work | None = None
        self.hashed: Future[None] | None = None
        self._mapping = source.map(offset, count)
        self.view = memoryview(self._mapping)
        try:
            self.region: Region = context.register(self.view, access="")
        except BaseException:
            self.view.release()
            self._mapping.close()
            raise

    def close(self) -> None:
        """Waits till the piece is hashed and frees it; a write under way keeps its memory."""
        if self.hashed is not None:
            self.hashed.result()
        self.region.close()
        # After a failure the write may still hold the memory, which then goes with it.
        with contextlib.suppress(BufferError):
            self.view.release()
            self._mapping.close()


class Sender:
    """Sends files over one connection. One thread; owns nothing that outlives ``send``."""

    def __init__(
        self,
        context: Context,
        connection: Connection,
        *,
        timeout: float,
        progress: Progress,
    ) -> None:
        self._context = context
        self._connection = connection
        self._timeout = timeout
        self._progress = progress
        self._channel = Channel(connection, timeout)
        self._free: deque[int] = deque()
        # Pieces being written, and after that those not hashed yet; oldest first.
        self._writing: deque[_Piece] = deque()
        self._hashing: deque[_Piece] = deque()
        self._slot_bytes = 0
        self._key: RemoteKey | None = None

    def send(self, sources: Sequence[Source]) -> list[TransferredFile]:
        """Sends the files in order; returns when the receiver has stored and verified them all.

        Raises ``CommandError`` with the receiver's reason where it gives up, and the errors of
        ``Connection`` where the receiver is lost or silent. A failure of this side is told to
        the receiver.
        """
        try:
            self._introduce(sources)
            with StreamDigest() as digest:
                results = [self._send_file(source, digest) for source in sources]
            self._channel.send(Goodbye())
        except (Exception, KeyboardInterrupt, Interrupted) as error:
            self._channel.report_failure(describe(error))
            raise
        return results

    def _introduce(self, sources: Sequence[Source]) -> None:
        total = sum(source.bytes for source in sources)
        self._channel.send(Hello(PROTOCOL, VERSION, len(sources), total))
        for source in sources:
            self._channel.send(FileEntry(source.name, source.bytes))
        ready = self._channel.receive(Ready)
        page = mmap.ALLOCATIONGRANULARITY
        if ready.slots < 1 or ready.slot_bytes < page or ready.slot_bytes % page:
            raise CommandError("the receiver's window makes no sense: use the same version there")
        self._key = RemoteKey.from_bytes(bytes.fromhex(ready.key))
        self._slot_bytes = ready.slot_bytes
        self._free.extend(range(ready.slots))

    def _send_file(self, source: Source, digest: StreamDigest) -> TransferredFile:
        digest.restart()
        self._progress.start(source.name, source.bytes)
        try:
            for offset in range(0, source.bytes, self._slot_bytes):
                count = min(self._slot_bytes, source.bytes - offset)
                piece = _Piece(self._context, source, offset, count)
                self._writing.append(piece)
                piece.hashed = digest.update(piece.view)
                self._begin_write(piece)
            while self._writing:
                self._land_oldest()
            sha256 = digest.finish()
        finally:
            for piece in (*self._hashing, *self._writing):
                piece.close()
            self._hashing.clear()
            self._writing.clear()
        self._channel.send(Finish(sha256))
        if self._await_stored().sha256 != sha256:
            raise CommandError(f"{source.path} arrived damaged, and the receiver did not see it")
        return TransferredFile(source.name, source.bytes, sha256)

    def _begin_write(self, piece: _Piece) -> None:
        while not self._free:
            # The receiver frees a slot only after it has heard that something lies in it.
            if len(self._writing) > 1:
                self._land_oldest()
            else:
                self._free.append(self._channel.receive(Free).slot)
        assert self._key is not None
        piece.slot = self._free.popleft()
        offset = piece.slot * self._slot_bytes
        piece.write = self._connection.iwrite(piece.region, self._key, offset=offset)
        if len(self._writing) >= WRITES_IN_FLIGHT:
            self._land_oldest()

    def _land_oldest(self) -> None:
        """Waits for the oldest write and tells the receiver; its memory goes once it is hashed."""
        piece = self._writing[0]
        assert piece.write is not None
        piece.write.wait(timeout=self._timeout)
        self._channel.send(Chunk(piece.slot, piece.bytes))
        self._progress.advance(piece.bytes)
        self._hashing.append(self._writing.popleft())
        if len(self._hashing) > HASHES_BEHIND:
            self._hashing.popleft().close()

    def _await_stored(self) -> Stored:
        while True:
            answer = self._channel.receive(Free, Stored)
            if isinstance(answer, Stored):
                return answer
            self._free.append(answer.slot)
