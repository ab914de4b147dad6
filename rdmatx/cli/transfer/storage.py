"""Where the receiver puts files: one folder, nothing outside it, and no half file under a name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from rdmatx.cli.errors import CommandError, describe
from rdmatx.cli.output import format_bytes, printable
from rdmatx.cli.transfer.protocol import FileEntry

# What a file system answers that has no unnamed files (or, for link, no hard links).
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)


def check_name(name: str) -> None:
    """Raises unless ``name`` is the plain name of a file, with no way out of a folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise CommandError(f"the sender named a file {printable(name)!r}, which is no file name")
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise CommandError(f"the file name {printable(name)!r} cannot be written here") from error


class Folder:
    """The folder that receives. Owns a file descriptor of it; ``close`` gives it back.

    Everything goes through the descriptor, so a folder that is moved or replaced meanwhile
    cannot lead the files astray.
    """

    def __init__(self, path: Path) -> None:
        """Opens ``path``, made with its parents where it does not exist."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CommandError(f"cannot receive into {path}: {describe(error)}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            self.close()
            raise CommandError(f"cannot receive into {path}: no permission to write there")

    def close(self) -> None:
        """Gives the descriptor back; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def holds(self, name: str) -> bool:
        """Whether there is something of that name, a dangling link included."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def free_bytes(self) -> int:
        """What may still be written here."""
        space = os.fstatvfs(self.fd)
        return space.f_bavail * space.f_frsize

    def check(self, entries: Sequence[FileEntry], *, overwrite: bool) -> None:
        """Raises where the files cannot all be stored, before any of them is sent."""
        names = [entry.name for entry in entries]
        for name in names:
            check_name(name)
        if len(set(names)) != len(names):
            raise CommandError("two of the files have the same name")
        for name in names if not overwrite else []:
            if self.holds(name):
                raise CommandError(
                    f"{printable(name)} exists already in {self.path} on the receiver: move it "
                    "away, or start the receiver with --overwrite"
                )
        needed = sum(entry.bytes for entry in entries)
        free = self.free_bytes()
        if needed > free:
            raise CommandError(
                f"no space for {format_bytes(needed)} in {self.path} on the receiver: "
                f"{format_bytes(free)} are free there"
            )


class IncomingFile:
    """A file while it arrives. Owns it until ``commit``; without one, ``discard`` leaves nothing.

    Where the file system can (O_TMPFILE), the file has no name before it is whole, so that even
    ``kill -9`` leaves nothing behind. Elsewhere it is called ``NAME.part`` and locked: a
    leftover of a killed receiver is unlocked and gets replaced.
    """

    def __init__(self, folder: Folder, name: str, *, overwrite: bool) -> None:
        self.name = name
        self._folder = folder
        self._overwrite = overwrite
        self._part: str | None = None
        try:
            self._fd = os.open(
                ".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666, dir_fd=folder.fd
            )
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._fd = self._open_part(f"{name}.part")

    def _open_part(self, part: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o666, dir_fd=self._folder.fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise CommandError(
                    f"another receiver is writing {printable(part)} in {self._folder.path}"
                ) from error
            raise
        self._part = part
        return fd

    def write(self, offset: int, piece: memoryview) -> None:
        """Writes the whole of ``piece`` at ``offset``. Any thread."""
        while len(piece):
            count = os.pwrite(self._fd, piece, offset)
            offset += count
            piece = piece[count:]

    def commit(self) -> None:
        """Gives the file its name. It was there already: replaced only where that was asked for."""
        if self._part is None:
            self._link_unnamed()
        else:
            self._rename_part(self._part)
        self._part = None
        self._close()

    def _link_unnamed(self) -> None:
        # Linked through its descriptor; the folder's descriptor makes Python call linkat, which
        # alone can follow the link in /proc.
        here = f"/proc/self/fd/{self._fd}"
        folder = self._folder.fd
        if not self._overwrite:
            os.link(here, self.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
            return
        part = f".{os.urandom(8).hex()}.part"
        os.link(here, part, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
        try:
            os.replace(part, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(part, dir_fd=folder)
            raise

    def _rename_part(self, part: str) -> None:
        folder = self._folder.fd
        if not self._overwrite:
            # A link, unlike a rename, fails where the name was taken meanwhile.
            try:
                os.link(part, self.name, src_dir_fd=folder, dst_dir_fd=folder)
                os.unlink(part, dir_fd=folder)
                return
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            if self._folder.holds(self.name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.name)
        os.replace(part, self.name, src_dir_fd=folder, dst_dir_fd=folder)

    def discard(self) -> None:
        """Removes what arrived; does nothing after ``commit``."""
        if self._part is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part, dir_fd=self._folder.fd)
            self._part = None
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
