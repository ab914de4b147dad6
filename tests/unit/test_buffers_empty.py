"""Memory of rdmatx.empty: its views, its lifetime, and the pool that it comes from."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys

import numpy as np
import pytest

import rdmatx
from rdmatx.errors import UsageError
from tests.launch import ROOT


def test_empty() -> None:
    buffer = rdmatx.empty(1000)
    assert (buffer.nbytes, len(buffer)) == (1000, 1000)
    assert buffer.address % mmap.PAGESIZE == 0
    assert bytes(buffer) == bytes(1000)
    view, other = np.asarray(buffer), memoryview(buffer)
    assert (view.dtype, view.shape) == (np.uint8, (1000,))
    view[3] = 7
    assert other[3] == 7
    assert np.from_dlpack(buffer)[3] == 7
    assert view.ctypes.data == buffer.address


def test_empty_lives_as_long_as_its_views() -> None:
    for view_of in (np.asarray, memoryview, np.from_dlpack):
        view = view_of(rdmatx.empty(1 << 20))
        gc.collect()
        assert bytes(view[:8]) == bytes(8)
        del view


def test_empty_comes_again_zeroed() -> None:
    rdmatx.empty(100_000)
    first = rdmatx.empty(100_000)
    address = first.address
    np.asarray(first)[:] = 7
    other = rdmatx.empty(100_000)
    assert other.address != address  # the first is in use
    view = np.asarray(first)[10:20]
    del first
    assert rdmatx.empty(100_000).address != address  # and so is its view
    del view
    again = rdmatx.empty(100_000)
    assert again.address == address
    assert bytes(again) == bytes(100_000)


FORKED = """
import os
import numpy as np
import rdmatx

rdmatx.empty(100_000)  # waits in the pool
held = rdmatx.empty(50_000)
np.asarray(held)[:] = 5
to_child, from_parent = os.pipe()
child = os.fork()
if child == 0:
    os.read(to_child, 1)
    del held  # the parent's still
    for nbytes in (100_000, 50_000):
        np.asarray(rdmatx.empty(nbytes))[:] = 7
    os._exit(0)
taken = rdmatx.empty(100_000)
np.asarray(taken)[:] = 6
os.write(from_parent, b".")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert bytes(taken) == bytes([6]) * 100_000
assert bytes(held) == bytes([5]) * 50_000
"""


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    """The pages are shared: both sides would write to the same."""
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60, cwd=ROOT)


def test_empty_of_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="negative"):
        rdmatx.empty(-1)
    with pytest.raises(UsageError, match=r'"cpu" or a GPU'):
        rdmatx.empty(8, device="tpu")
    with pytest.raises(rdmatx.Error, match="bytes"):
        rdmatx.empty(1 << 62)


def test_dlpack_of_empty_follows_the_array_api() -> None:
    buffer = rdmatx.empty(8)
    assert buffer.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(buffer.__dlpack__())
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
