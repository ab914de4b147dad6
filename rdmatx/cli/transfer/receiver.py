"""The receiving side: offers a window of registered memory, stores and verifies what lands in it."""

from __future__ import annotations

import mmap
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import rdmatx
from rdmatx import Connection, Context
from rdmatx.cli.errors import CommandError, Interrupted, describe
from rdmatx.cli.output import printable
from rdmatx.cli.transfer.digest import StreamDigest
from rdmatx.cli.transfer.progress import Progress
from rdmatx.cli.transfer.protocol import (
    Channel,
    Chunk,
    FileEntry,
    Finish,
    Free,
    Goodbye,
    Hello,
    ProtocolError,
    Ready,
    Stored,
    check_hello,
)
from rdmatx.cli.transfer.result import TransferredFile
from rdmatx.cli.transfer.storage import Folder, IncomingFile
from rdmatx.errors import Error

WINDOW_BYTES = 64 << 20
SLOTS = 8
# More files than this are sent in several calls.
MOST_FILES = 100_000


class Window:
    """Registered memory for the sender to write into, cut into slots. Owns memory and Region.

    The memory is rdmatx's own (``rdmatx.empty``): a peer on the same host maps it and writes
    straight into it, and a device registers it, which a writable mapping of an ordinary file
    would not allow everywhere.
    """

    def __init__(self, context: Context, window_bytes: int) -> None:
        page = mmap.ALLOCATIONGRANULARITY
        self.slots = SLOTS
        self.slot_bytes = max(window_bytes // SLOTS // page * page, page)
        self._memory = rdmatx.empty(self.slots * self.slot_bytes)
        self._region = context.register(self._memory, access="w")
        self._view = memoryview(self._memory).cast("B")

    def ready(self) -> Ready:
        """The record that tells the sender about it."""
        return Ready(bytes(self._region.key()).hex(), self.slots, self.slot_bytes)

    def slot(self, index: int, count: int) -> memoryview:
        """The first ``count`` bytes of a slot."""
        begin = index * self.slot_bytes
        return self._view[begin : begin + count]

    def close(self) -> None:
        """Takes the registration back: nobody can write here any more."""
        self._region.close()
        self._view.release()


@dataclass(frozen=True)
class _Busy:
    """A slot whose bytes are being written to the file and hashed."""

    slot: int
    jobs: tuple[Future[None], Future[None]]

    def wait(self) -> int:
        for job in self.jobs:
            job.result()
        return self.slot

    def done(self) -> bool:
        return all(job.done() for job in self.jobs)


class Receiver:
    """Receives the files of one sender into ``folder``. One thread, and two more for disk and hash.

    Nothing of a file that did not arrive whole and verified stays in the folder.
    """

    def __init__(
        self,
        context: Context,
        connection: Connection,
        folder: Folder,
        *,
        overwrite: bool,
        timeout: float,
        progress: Progress,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._context = context
        self._channel = Channel(connection, timeout)
        self._folder = folder
        self._overwrite = overwrite
        self._progress = progress
        self._window_bytes = window_bytes
        self._busy: deque[_Busy] = deque()

    def receive(self) -> list[TransferredFile]:
        """Receives until the sender has sent all it announced.

        Raises ``CommandError`` where a file cannot be stored or does not arrive intact, and the
        errors of ``Connection`` where the sender is lost or silent. A failure of this side is
        told to the sender.
        """
        try:
            entries = self._read_announcement()
            self._folder.check(entries, overwrite=self._overwrite)
            window = Window(self._context, self._window_bytes)
        except (Exception, KeyboardInterrupt, Interrupted) as error:
            self._channel.report_failure(describe(error))
            raise
        disk = ThreadPoolExecutor(1, thread_name_prefix="rdmatx-disk")
        digest = StreamDigest()
        try:
            self._channel.send(window.ready())
            results = [self._receive_file(entry, window, disk, digest) for entry in entries]
        except (Exception, KeyboardInterrupt, Interrupted) as error:
            self._channel.report_failure(describe(error))
            # Without the window writes under way would fail before the sender has read the reason.
            if isinstance(error, Exception):
                self._channel.await_end()
            raise
        finally:
            # The threads first: they read the window.
            disk.shutdown(wait=True, cancel_futures=True)
            digest.close()
            window.close()
        self._await_goodbye()
        return results

    def _read_announcement(self) -> list[FileEntry]:
        hello = self._channel.receive(Hello)
        check_hello(hello)
        if not 1 <= hello.files <= MOST_FILES:
            raise ProtocolError(
                f"the sender announced {hello.files} files: send at most {MOST_FILES}"
            )
        entries = [self._channel.receive(FileEntry) for _ in range(hello.files)]
        if sum(entry.bytes for entry in entries) != hello.bytes:
            raise ProtocolError("the sender announced files that do not add up")
        return entries

    def _receive_file(
        self, entry: FileEntry, window: Window, disk: ThreadPoolExecutor, digest: StreamDigest
    ) -> TransferredFile:
        digest.restart()
        self._busy.clear()
        self._progress.start(entry.name, entry.bytes)
        incoming = IncomingFile(self._folder, entry.name, overwrite=self._overwrite)
        try:
            sha256 = self._receive_chunks(entry, window, disk, digest, incoming)
            actual = digest.finish()
            if actual != sha256:
                raise CommandError(
                    f"{printable(entry.name)} arrived damaged and was not kept: its SHA-256 is "
                    f"{actual} here and {sha256} at the sender. Send it again"
                )
            incoming.commit()
        finally:
            # The disk thread may still be writing what came before a failure.
            disk.submit(incoming.discard).result()
        self._channel.send(Stored(actual))
        return TransferredFile(entry.name, entry.bytes, actual)

    def _receive_chunks(
        self,
        entry: FileEntry,
        window: Window,
        disk: ThreadPoolExecutor,
        digest: StreamDigest,
        incoming: IncomingFile,
    ) -> str:
        """Stores chunks until the sender says it is through; gives the sender's SHA-256."""
        position = 0
        while True:
            record = self._channel.receive(Chunk, Finish)
            if isinstance(record, Finish):
                break
            self._check_chunk(record, window, entry.bytes - position)
            piece = window.slot(record.slot, record.bytes)
            jobs = (disk.submit(incoming.write, position, piece), digest.update(piece))
            self._busy.append(_Busy(record.slot, jobs))
            position += record.bytes
            self._progress.advance(record.bytes)
            self._free_slots(window.slots - 1)
        self._free_slots(0)
        if position != entry.bytes:
            raise ProtocolError(
                f"the sender announced {entry.bytes} bytes for {printable(entry.name)} and sent "
                f"{position}"
            )
        return record.sha256

    def _check_chunk(self, chunk: Chunk, window: Window, remaining: int) -> None:
        known = chunk.slot < window.slots and all(busy.slot != chunk.slot for busy in self._busy)
        if not known or not 1 <= chunk.bytes <= min(window.slot_bytes, remaining):
            raise ProtocolError("the sender filled a slot that was not its to fill")

    def _free_slots(self, most_busy: int) -> None:
        """Gives slots back: those that are done, and more until at most ``most_busy`` are left."""
        while self._busy and (len(self._busy) > most_busy or self._busy[0].done()):
            self._channel.send(Free(self._busy[0].wait()))
            self._busy.popleft()

    def _await_goodbye(self) -> None:
        """Keeps the connection until the sender has seen the last answer, or is gone."""
        try:
            self._channel.receive(Goodbye)
        except (CommandError, Error):
            return
