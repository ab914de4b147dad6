"""How a device reaches the memory of a GPU, what is said of it, and what happens where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import rdmatx
from rdmatx import _C
from rdmatx.errors import UnavailableError, UsageError
from tests.gpu import fake_driver
from tests.gpu.conftest import PATIENCE, Pair
from tests.gpu.fake_driver import LIBRARY, Array, Memory
from tests.launch import ROOT, Rank, launch
from tests.multiprocess.messages import meet

pytestmark = pytest.mark.soft_only

NBYTES = 300_000


@pytest.fixture
def without_dma_buf(fake_gpu: None) -> Iterator[None]:
    fake_driver.setting("dma_buf", 0)
    yield
    fake_driver.setting("dma_buf", 1)


def exchange(near: rdmatx.Connection, far: rdmatx.Connection, array: Array) -> None:
    content = bytes(i % 241 for i in range(array.nbytes))
    array.set(content)
    landing = bytearray(array.nbytes)
    work = far.irecv(landing)
    near.send(array)
    work.wait()
    assert landing == content
    array.set(bytes(array.nbytes))
    work = far.irecv(array)
    near.send(content)
    work.wait()
    assert array.get() == content


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_by_dma_buf(pair: Pair) -> None:
    assert pair.near.stats()["gpus"] == []
    exchange(pair.near, pair.far, Array(Memory(NBYTES)))
    (choice,) = pair.near.stats()["gpus"]
    assert (choice["way"], choice["gpu"], choice["reason"]) == ("dma-buf", 0, "")
    assert "GPU 0: dma-buf" in pair.context.describe()


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_neither_dma_buf_nor_peer_memory(
    without_dma_buf: None, pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    array = Array(Memory(NBYTES))
    for _ in range(3):
        exchange(pair.near, pair.far, array)
    (choice,) = pair.near.stats()["gpus"]
    assert choice["way"] == "staging"
    assert "not by dma-buf: GPU 0 exports no dma-bufs" in choice["reason"]
    assert "not by peer memory: ibv_reg_mr" in choice["reason"]
    assert "GPU 0: staging (not by dma-buf" in pair.context.describe()
    said = capfd.readouterr().err
    assert said.count("go through the host's memory") == 1, said
    with pytest.raises(UnavailableError, match="cannot be registered"):
        pair.context.register(array, "rw")


@pytest.mark.parametrize("gpu_direct", ["require"])
def test_required(without_dma_buf: None, pair: Pair) -> None:
    array = Array(Memory(NBYTES))
    with pytest.raises(UnavailableError, match=r'gpu_direct="require".*exports no dma-bufs'):
        pair.near.isend(array)
    with pytest.raises(UnavailableError, match="not by peer memory"):
        pair.near.irecv(array)
    # The connection lives on, and what is small goes through a slot anyway.
    exchange(pair.near, pair.far, Array(Memory(100)))


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_an_export_that_fails_late(pair: Pair) -> None:
    array = Array(Memory(pieces=[65536] * 5))
    exchange(pair.near, pair.far, array)
    regions = _C.live_objects()["memory_region"]
    fake_driver.fail("cuMemGetHandleForAddressRange", 3, 999)
    with pytest.raises(UnavailableError, match=r"CUDA_ERROR_UNKNOWN \(999\)"):
        pair.context.register(array)
    assert _C.live_objects()["memory_region"] == regions
    fake_driver.fail("cuMemGetHandleForAddressRange", 3, 999)
    exchange(pair.near, pair.far, array)
    assert pair.near.stats()["gpus"][0]["way"] == "dma-buf"
    assert _C.live_objects()["memory_region"] == regions


@pytest.mark.parametrize("gpu_direct", ["off"])
def test_no_pinned_memory(pair: Pair) -> None:
    fake_driver.fail("cuMemHostAlloc", 1, 2)
    with pytest.raises(
        rdmatx.errors.CudaError, match="pinned memory: move the array in parts"
    ) as caught:
        pair.near.isend(Array(Memory(40 << 20)))
    assert (caught.value.call, caught.value.code) == ("cuMemHostAlloc", 2)
    exchange(pair.near, pair.far, Array(Memory(NBYTES)))


def test_words_that_are_none(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match='gpu_direct is "on"'):
        rdmatx.Context(provider="soft", gpu_direct="on")
    monkeypatch.setenv("RDMATX_GPU_DIRECT", "never")
    with pytest.raises(UsageError, match='gpu_direct is "never"'):
        rdmatx.Context(provider="soft")


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_a_key_of_several_pieces_goes_over_any_channel(pair: Pair) -> None:
    with pair.context.register(Array(Memory(pieces=[65536] * 3), 5), "r") as region:
        key = bytes(region.key())
        assert rdmatx.RemoteKey.from_bytes(key) == region.key()
        assert rdmatx.RemoteKey.from_bytes(key).nbytes == 3 * 65536 - 5
        for place in range(len(key)):
            damaged = bytearray(key)
            damaged[place] ^= 0x11
            for wrong in (key[:place], bytes(damaged), key + key[:place]):
                if wrong != key:
                    with pytest.raises(UsageError, match="key"):
                        rdmatx.RemoteKey.from_bytes(wrong)


def two_processes(rank: Rank, direct: str) -> list[str]:
    """A message from GPU to GPU, and where NICs reach them a write and a read."""
    fake_driver.use()
    content = bytes(i % 239 for i in range(NBYTES))
    array = Array(Memory(pieces=[65536, 131072, 131072]), 77, NBYTES)
    with (
        rdmatx.Context(provider="soft", timeout=PATIENCE, gpu_direct=direct) as context,
        meet(rank, context) as conn,
    ):
        if rank.index == 0:
            array.set(content)
            conn.send(array)
        else:
            conn.recv(array)
            assert array.get() == content
        if direct == "auto":
            _one_sided(rank, context, conn, array, content)
        rank.barrier()
        return [choice["way"] for choice in conn.stats()["gpus"]]


def _one_sided(
    rank: Rank, context: rdmatx.Context, conn: rdmatx.Connection, array: Array, content: bytes
) -> None:
    if rank.index == 0:
        key = rank.receive(1)
        conn.write(array, key, notify=1)
        array.set(bytes(NBYTES))
        conn.read(array, key)
        assert array.get() == content
        rank.send(1, "done")
        return
    array.set(bytes(NBYTES))
    with context.register(array, "rw") as region:
        rank.send(0, region.key())
        assert conn.next_notification() == 1
        assert array.get() == content
        assert rank.receive(0) == "done"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("wire", ["auto", "shm", "tcp"])
@pytest.mark.parametrize("direct", ["auto", "off"])
def test_from_process_to_process(
    fake_gpu: None, direct: str, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATX_SOFT_WIRE", wire)
    ways = launch(two_processes, direct, ranks=2)
    assert ways == ([["dma-buf"]] * 2 if direct == "auto" else [[], []])


def test_doctor_says_what_there_is(fake_gpu: None) -> None:
    def findings(library: str) -> list[dict[str, str]]:
        done = subprocess.run(
            [sys.executable, "-m", "rdmatx", "doctor", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "RDMATX_CUDA_LIBRARY": library},
        )
        return [check for check in json.loads(done.stdout)["checks"] if check["name"] == "GPU"]

    first, second = findings(str(LIBRARY))
    assert first["verdict"] == "fine"
    assert first["finding"].startswith("GPU 0: Fake GPU 0 at 0000:10:00.0 (CUDA driver 12.4)")
    assert "registered by dma-buf" in second["finding"]
    (absent,) = findings("/nonexistent/libcuda.so.1")
    assert absent["verdict"] == "fine"
    assert "no GPU: the CUDA driver cannot be loaded" in absent["finding"]
