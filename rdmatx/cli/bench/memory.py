"""The memory that is moved: of a known kind, with content that tells one round from another."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from typing import Any

from rdmatx.cli.errors import CommandError

HUGE_PAGE = 2 << 20
_STAMP_EVERY = 4096
_STAMP_BYTES = 16
_POISON = 0xA5


class Block:
    """``nbytes`` bytes of private memory, or of ``rdmatx.empty`` where ``shared``.

    Owns the memory, which goes when the last view of it goes. ``buffer`` is what the libraries
    are given, ``address`` where it lies. Private memory has 4 KiB pages, or 2 MiB ones with
    ``huge`` (where the system allows them): libraries differ in what they get by default, and
    speed follows the pages.
    """

    def __init__(self, nbytes: int, *, shared: bool = False, huge: bool = False) -> None:
        self.nbytes = nbytes
        if shared:
            import rdmatx

            self.buffer: Any = rdmatx.empty(max(nbytes, 1))
            self.view = memoryview(self.buffer).cast("B")[:nbytes]
        else:
            self.view = _private_memory(nbytes, huge=huge)
            self.buffer = self.view
        self.address = _address_of(self.view)
        self._touch()

    def _touch(self) -> None:
        """Gives every page its content, so that no round pays for the first use of a page."""
        pattern = os.urandom(min(1 << 20, self.nbytes))
        for begin in range(0, self.nbytes, 1 << 20):
            count = min(1 << 20, self.nbytes - begin)
            self.view[begin : begin + count] = pattern[:count]

    def stamp(self, seed: int) -> None:
        """Changes a few bytes of every page into what only this ``seed`` and place give."""
        for begin in range(0, self.nbytes, _STAMP_EVERY):
            count = min(_STAMP_BYTES, self.nbytes - begin)
            text = hashlib.blake2b(b"%d %d" % (seed, begin), digest_size=_STAMP_BYTES).digest()
            self.view[begin : begin + count] = text[:count]

    def poison(self) -> None:
        """Overwrites everything, so that nothing of an earlier round passes for this one."""
        ctypes.memset(self.address, _POISON, self.nbytes)

    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.view).hexdigest()


def _private_memory(nbytes: int, *, huge: bool) -> memoryview:
    # One huge page more than needed, so that the block can begin at the start of one.
    whole = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        whole.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    except OSError as error:
        # A kernel without transparent huge pages has 4 KiB pages only.
        if huge:
            raise CommandError(
                "this kernel has no transparent huge pages: leave --huge out, or boot one that has"
            ) from error
    view = memoryview(whole)
    begin = -_address_of(view) % HUGE_PAGE
    return view[begin : begin + nbytes]


def _address_of(view: memoryview) -> int:
    if not len(view):
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
