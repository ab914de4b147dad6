"""Messages of gigabytes: their sizes pass 32 bits, and one work request does not hold them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.launch import Rank, launch
from tests.multiprocess.test_messages import connect

GIB = 1 << 30
SIZES = [2 * GIB - 1, 2 * GIB, 2 * GIB + 1, 3 * GIB]


def fill(nbytes: int) -> np.ndarray:
    """Every 8-byte word differs."""
    memory = np.empty(nbytes + 7 & ~7, np.uint8)
    words = memory.view(np.uint64)
    words[:] = np.arange(len(words), dtype=np.uint64)
    return memory[:nbytes]


def available_memory() -> int:
    """Bytes that may be used without swapping, caches included."""
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found.group(1)) * 1024 if found else 0


def large(rank: Rank, provider: str, device: str | None, nbytes: int) -> int:
    context, connection = connect(rank, provider, device)
    with context, connection:
        if rank.index == 0:
            connection.send(fill(nbytes), timeout=300)
            connection.recv(bytearray(1), timeout=300)
            return nbytes
        memory = np.zeros(nbytes, np.uint8)
        assert connection.recv(memory, timeout=300) == nbytes
        step = 64 << 20
        for start in range(0, nbytes, step):
            words = memory[start : min(start + step, nbytes // 8 * 8)].view(np.uint64)
            expected = np.arange(start // 8, start // 8 + len(words), dtype=np.uint64)
            assert np.array_equal(words, expected), f"wrong after byte {start}"
        connection.send(b".")
        return nbytes


@pytest.mark.slow
@pytest.mark.soft_only
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nbytes", SIZES)
def test_gigabytes(provider: str, device_name: str | None, nbytes: int) -> None:
    if available_memory() < 2 * nbytes + (1 << 30):
        pytest.skip(f"needs {2 * nbytes >> 30} GiB of free memory for two ranks")
    assert launch(large, provider, device_name, nbytes, timeout=500) == [nbytes] * 2
