"""Registrations that outlive their operations: what is kept, what is not, and that nothing stale is sent."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rdmatx
from rdmatx import _C, errors
from rdmatx.buffers import trim
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content
from tests.multiprocess.test_messages import connect

ON = {"RDMATX_REGISTRATION_CACHE": "1"}
NBYTES = 100_000


def open_pair(provider: str, device_name: str | None) -> Iterator[Pair]:
    with (
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
        context.listen("127.0.0.1:0") as listener,
        context.connect(listener.address) as near,
        listener.accept() as far,
    ):
        yield Pair(context, listener, near, far)


@pytest.fixture
def cached(
    monkeypatch: pytest.MonkeyPatch, provider: str, device_name: str | None
) -> Iterator[Pair]:
    """A pair whose context keeps registrations, whatever its provider does by itself."""
    monkeypatch.setenv("RDMATX_REGISTRATION_CACHE", "1")
    yield from open_pair(provider, device_name)


def move(pair: Pair, source: Any, target: Any) -> None:
    work = pair.near.isend(source)
    pair.far.recv(target)
    work.wait()


def kept(pair: Pair) -> int:
    return pair.context.stats()["registrations_kept"]


def bytes_of(nbytes: int, seed: int = 0) -> Any:
    return np.frombuffer(content(nbytes, seed), np.uint8).copy()


def test_the_hit_rate_shows(cached: Pair) -> None:
    source, target = bytes_of(NBYTES), np.zeros(NBYTES, np.uint8)
    for _ in range(10):
        move(cached, source, target)
    assert np.array_equal(source, target)
    stats = cached.context.stats()
    assert stats["registration_misses"] == 2
    assert stats["registration_hits"] == 18
    assert (stats["registrations_kept"], stats["registration_evictions"]) == (2, 0)
    assert stats["pinned_bytes"] == 2 * NBYTES <= stats["pin_limit_bytes"]


def test_one_registration_for_all_views(cached: Pair) -> None:
    source, landing = bytes_of(10 * NBYTES), bytearray(NBYTES)
    for index in range(10):
        view = source[:][index * NBYTES :][:NBYTES].view(np.int32)
        move(cached, view, landing)
        assert landing == view.tobytes()
    assert kept(cached) == 1
    assert cached.context.stats()["pinned_bytes"] == source.nbytes


def test_death_evicts_at_once(cached: Pair) -> None:
    landing = bytearray(NBYTES)
    source = bytes_of(NBYTES)
    view = source[10:]
    move(cached, view, landing)
    del source
    assert kept(cached) == 1  # the view keeps the memory
    del view
    assert kept(cached) == 0
    live = _C.live_objects()["memory_region"]
    for _ in range(5):
        move(cached, bytes_of(NBYTES), np.zeros(NBYTES, np.uint8))
        assert kept(cached) == 0
    assert _C.live_objects()["memory_region"] == live


def test_a_cycle_that_dies_evicts_too(cached: Pair) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.array, holder.itself = bytes_of(NBYTES), holder  # type: ignore[attr-defined]
    move(cached, holder.array, bytearray(NBYTES))  # type: ignore[attr-defined]
    assert kept(cached) == 1
    del holder
    gc.collect()
    assert kept(cached) == 0


def test_an_operation_holds_what_it_uses(cached: Pair) -> None:
    """The array is dropped while it is being sent."""
    work = cached.near.isend(bytes_of(NBYTES, 5))
    gc.collect()
    landing = bytearray(NBYTES)
    assert cached.far.recv(landing) == NBYTES
    assert landing == content(NBYTES, 5)
    work.wait()


UNWATCHED: dict[str, Callable[[], Any]] = {
    "bytes": lambda: content(NBYTES),
    "bytearray": lambda: bytearray(content(NBYTES)),
    "array": lambda: array.array("B", content(NBYTES)),
    "memoryview of a bytearray": lambda: memoryview(bytearray(content(NBYTES))),
    "numpy over a bytearray": lambda: np.frombuffer(bytearray(content(NBYTES)), np.uint8),
}


@pytest.mark.parametrize("kind", UNWATCHED)
def test_memory_whose_end_nobody_tells_is_not_kept(cached: Pair, kind: str) -> None:
    source, landing = UNWATCHED[kind](), bytearray(NBYTES)
    for _ in range(3):
        move(cached, source, landing)
        assert landing == content(NBYTES)
    stats = cached.context.stats()
    assert (stats["registrations_kept"], stats["registration_hits"]) == (0, 0)
    assert stats["registration_uncached"] == 6


def test_mapped_memory_is_not_kept(cached: Pair) -> None:
    with mmap.mmap(-1, NBYTES) as mapped:
        landing = bytearray(NBYTES)
        for seed in range(3):
            mapped[:] = content(NBYTES, seed)
            for view in (mapped, np.frombuffer(mapped, np.uint8)):
                move(cached, view, landing)
                assert landing == content(NBYTES, seed)
            del view
    assert kept(cached) == 0


def test_an_array_given_other_memory(cached: Pair) -> None:
    """numpy refuses to resize a watched array in place; where it is given other memory that is seen."""
    landing = bytearray(3 * NBYTES)
    source = bytes_of(NBYTES)
    move(cached, source, landing)
    for refcheck in (True, False):
        with pytest.raises(ValueError, match="cannot resize"):
            source.resize(2 * NBYTES, refcheck=refcheck)
    move(cached, source, landing)
    assert landing[:NBYTES] == source.tobytes()
    assert cached.context.stats()["registration_hits"] == 1


def test_a_failed_operation_takes_its_registration_along(cached: Pair) -> None:
    target = np.zeros(NBYTES, np.uint8)
    move(cached, bytearray(NBYTES), target)
    assert kept(cached) == 1
    work = cached.near.isend(content(2 * NBYTES))
    with pytest.raises(errors.SizeMismatchError):
        cached.far.recv(target)
    with pytest.raises(errors.SizeMismatchError):
        work.wait()
    assert kept(cached) == 0


def test_the_limit(monkeypatch: pytest.MonkeyPatch, provider: str, device_name: str | None) -> None:
    monkeypatch.setenv("RDMATX_REGISTRATION_CACHE", "1")
    monkeypatch.setenv("RDMATX_PIN_LIMIT", str(5 * NBYTES))
    for pair in open_pair(provider, device_name):
        sources = [bytes_of(NBYTES, seed) for seed in range(20)]
        landing = bytearray(NBYTES)
        for source in sources * 2:
            move(pair, source, landing)
            assert landing == source.tobytes()
            stats = pair.context.stats()
            assert stats["pinned_bytes"] <= stats["pin_limit_bytes"] == 5 * NBYTES
        assert stats["registration_evictions"] == 35
        assert stats["registrations_kept"] == 5


def test_local_only(
    monkeypatch: pytest.MonkeyPatch, provider: str, device_name: str | None
) -> None:
    monkeypatch.setenv("RDMATX_REGISTRATION_CACHE", "local")
    for pair in open_pair(provider, device_name):
        source, target = bytes_of(NBYTES), np.zeros(NBYTES, np.uint8)
        for _ in range(3):
            move(pair, source, target)
        assert np.array_equal(source, target)
        stats = pair.context.stats()
        assert (stats["registrations_kept"], stats["registration_hits"]) == (1, 2)
        assert stats["registration_uncached"] == 3


def test_by_itself(monkeypatch: pytest.MonkeyPatch, provider: str, device_name: str | None) -> None:
    """Devices that pin memory keep what no peer was let write to; the software HCA keeps nothing."""
    monkeypatch.delenv("RDMATX_REGISTRATION_CACHE", raising=False)
    for pair in open_pair(provider, device_name):
        source, target = bytes_of(NBYTES), np.zeros(NBYTES, np.uint8)
        for _ in range(3):
            move(pair, source, target)
        stats = pair.context.stats()
        assert stats["registration_hits"] == (0 if provider == "soft" else 2)
        assert stats["registration_uncached"] == (6 if provider == "soft" else 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RDMATX_REGISTRATION_CACHE", "yes"),
        ("RDMATX_PIN_LIMIT", "-1"),
        ("RDMATX_PIN_LIMIT", "1G"),
        ("RDMATX_PIN_LIMIT", "99999999999999999999999"),
    ],
)
def test_wrong_settings(
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    device_name: str | None,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(errors.UsageError, match=name):
        rdmatx.Context(device_name, provider)


def test_closing_frees_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, provider: str, device_name: str | None
) -> None:
    monkeypatch.setenv("RDMATX_REGISTRATION_CACHE", "1")
    source, target = bytes_of(NBYTES), np.zeros(NBYTES, np.uint8)
    for _ in range(3):
        for pair in open_pair(provider, device_name):
            move(pair, source, target)
            assert kept(pair) == 2
        assert _C.live_objects()["memory_region"] == 0
        with pytest.raises(errors.ClosedError):
            pair.context.stats()


def test_regions_of_empty_come_again(cached: Pair) -> None:
    source = bytes_of(NBYTES)
    for _ in range(5):
        buffer = rdmatx.empty(NBYTES)
        assert bytes(buffer) == bytes(NBYTES)
        target = np.asarray(buffer)
        move(cached, source, target)
        assert np.array_equal(source, target)
        del buffer, target
    stats = cached.context.stats()
    assert stats["registration_misses"] == 2
    assert stats["registration_hits"] == 8
    trim()
    assert kept(cached) == 1


def test_staging_of_strided_arrays_comes_again(cached: Pair) -> None:
    source = np.arange(40000, dtype=np.int32).reshape(200, 200)
    target = np.zeros_like(source)
    for _ in range(5):
        move(cached, source.T, target[::-1].T)
    assert np.array_equal(target[::-1], source)
    assert cached.context.stats()["registration_misses"] == 2


# ---- memory that is freed and used again ---------------------------------------------------------------


def shrink_the_heap() -> Callable[[], None]:
    """Makes glibc give memory back to the kernel at once; the function returned trims what it still keeps."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        pytest.skip("needs glibc: its allocator is told when to return memory to the kernel")
    mmap_threshold, trim_threshold = -3, -1  # malloc.h
    assert libc.mallopt(mmap_threshold, 32768)
    assert libc.mallopt(trim_threshold, 0)
    return lambda: libc.malloc_trim(0)


def recycled(rank: Rank, provider: str, device: str | None, rounds: int) -> int:
    """Buffers of changing size and content at addresses that come again, on both ends."""
    trim_heap = shrink_the_heap()
    generator = random.Random(rank.index)
    context, connection = connect(rank, provider, device)
    addresses: set[int] = set()
    again = 0
    with context, connection:
        for index in range(rounds):
            nbytes = random.Random(index).choice([12000, 20000, 40000, 70000])
            stamp = (np.arange(nbytes // 8, dtype=np.uint64) + np.uint64(index * 1_000_003)).view(
                np.uint8
            )
            owner: Any = np.empty(nbytes + generator.choice([0, 8, 4096]), np.uint8)
            memory = owner[: stamp.nbytes]
            again += memory.ctypes.data in addresses
            addresses.add(memory.ctypes.data)
            if index % 2 == rank.index:
                memory[:] = stamp
                connection.send(memory)
            else:
                assert connection.recv(memory) == stamp.nbytes
                assert np.array_equal(memory, stamp), f"message {index} is not what was sent"
            del owner, memory
            if index % 50 == 0:
                trim_heap()
        stats = context.stats()
        assert stats["registration_misses"] > rounds / 2  # each a registration of its own
        assert stats["registrations_kept"] == 0
    assert again > rounds / 2, "the addresses did not come again: this tests nothing"
    return rounds


@pytest.mark.timeout(400)
def test_recycled_buffers(provider: str, device_name: str | None) -> None:
    assert launch(recycled, provider, device_name, 10_000, timeout=380, environment=ON) == (
        [10_000] * 2
    )


def reallocated(rank: Rank, provider: str, device: str | None, rounds: int) -> int:
    """Objects that live on while their memory becomes another: storages resized, tensors given others."""
    torch: Any = pytest.importorskip("torch")
    trim_heap = shrink_the_heap()
    context, connection = connect(rank, provider, device)
    count = 40000
    with context, connection:
        if rank.index == 1:
            landing = np.zeros(count, np.uint8)
            for index in range(rounds * 4):
                assert connection.recv(landing) == count
                assert landing.tobytes() == content(count, index % 100), f"message {index}"
            return rounds
        tensor = torch.empty(count, dtype=torch.uint8)
        storage = tensor.untyped_storage()
        shared = torch.from_numpy(np.zeros(count, np.uint8))
        for index in range(rounds):
            seeds = [(4 * index + k) % 100 for k in range(4)]
            values = [
                torch.frombuffer(bytearray(content(count, s)), dtype=torch.uint8) for s in seeds
            ]
            storage.resize_(0)  # freed, and allocated again: often at the same address
            trim_heap()
            storage.resize_(count)
            tensor.copy_(values[0])
            connection.send(tensor)
            tensor.data = values[1].clone()
            connection.send(tensor)
            tensor.set_(storage)
            tensor.copy_(values[2])
            connection.send(tensor)
            shared.data = torch.from_numpy(values[3].numpy().copy())
            connection.send(shared)
    return rounds


@pytest.mark.torch
@pytest.mark.timeout(200)
def test_reallocated_tensors(provider: str, device_name: str | None) -> None:
    pytest.importorskip("torch")
    assert launch(reallocated, provider, device_name, 300, timeout=180, environment=ON) == [300] * 2


# ---- torch -------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_storages_that_cannot_be_resized_are_kept(cached: Pair) -> None:
    torch: Any = pytest.importorskip("torch")
    landing = bytearray(NBYTES)
    for make in (
        lambda: torch.from_numpy(bytes_of(NBYTES)),
        lambda: torch.frombuffer(bytearray(content(NBYTES)), dtype=torch.uint8),
    ):
        tensor = make()
        before = cached.context.stats()["registration_hits"]
        for view in (tensor, tensor.view(torch.int32), tensor[:50000], tensor[::2]):
            move(cached, view, landing)
        move(cached, tensor, landing)
        assert landing == content(NBYTES)
        assert cached.context.stats()["registration_hits"] - before >= 3
        watched = weakref.ref(tensor.untyped_storage())
        del tensor, view
        gc.collect()
        assert watched() is None
    # The dense copy of tensor[::2] is kept for its own sake.
    trim()
    assert kept(cached) == 0


@pytest.mark.torch
def test_storages_that_can_be_resized_are_not_kept(cached: Pair) -> None:
    torch: Any = pytest.importorskip("torch")
    tensor, landing = torch.arange(NBYTES, dtype=torch.int32), bytearray(4 * NBYTES)
    for _ in range(3):
        move(cached, tensor, landing)
    assert landing == tensor.numpy(force=True).tobytes()
    assert cached.context.stats()["registration_hits"] == 0
