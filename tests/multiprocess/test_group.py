"""Collectives of several processes against numpy: types, operations, sizes, worlds, algorithms."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rdmatx import _C
from rdmatx.errors import UsageError
from tests.launch import Rank, launch
from tests.multiprocess.groups import (
    FACTOR,
    OPERATIONS,
    TYPES,
    check,
    make_group,
    one_on_verbs,
    reduced,
    reducible,
    values,
)

SIZES = (0, 1, 3, 1000)
LARGE = (1 << 20) + 1
WORLDS = (1, 2, 3, 4, 5, 8)


def every_all_reduce(rank: Rank, provider: str, device: str | None) -> int:
    done = 0
    digest = hashlib.sha256()
    with make_group(rank, provider, device) as group:
        for dtype in TYPES:
            for op in OPERATIONS:
                if not reducible(dtype, op):
                    with pytest.raises(UsageError):
                        group.all_reduce(np.zeros(1, dtype), op)
                    continue
                parts = [values(dtype, op, seed) for seed in range(rank.world)]
                expected = reduced(dtype, op, parts)
                # The large size is for every type, and for every operation where ranks are not crowded.
                every_operation = dtype in ("float32", "int32") and rank.world <= 4
                sizes = (*SIZES, LARGE) if op == "sum" or every_operation else SIZES
                for size in sizes:
                    for algorithm in _C.collective_algorithms("all_reduce"):
                        data = np.resize(parts[rank.index], size)
                        group.all_reduce(data, op, factor=FACTOR, algorithm=algorithm)
                        check(data, expected, f"{dtype} {op} {size} {algorithm}")
                        digest.update(data.tobytes())
                        done += 1
    # The same bits everywhere.
    for other in range(rank.world):
        if other != rank.index:
            rank.send(other, digest.hexdigest())
    for other in range(rank.world):
        if other != rank.index:
            assert rank.receive(other) == digest.hexdigest()
    return done


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", one_on_verbs(WORLDS, 2))
def test_every_all_reduce(provider: str, device_name: str | None, world: int) -> None:
    done = launch(every_all_reduce, provider, device_name, ranks=world, timeout=280)
    assert len(set(done)) == 1
    assert done[0] > 1000


def blocks(dtype: str, op: str, world: int, size: int, seed: int) -> np.ndarray:
    """A block of `size` elements for each rank, each block of its own."""
    return np.concatenate(
        [np.resize(values(dtype, op, 100 * seed + block), size) for block in range(world)]
    )


def every_other(rank: Rank, provider: str, device: str | None) -> int:
    world, me = rank.world, rank.index
    done = 0
    with make_group(rank, provider, device) as group:
        for size in (*SIZES, LARGE // world):
            # Uneven blocks, some of them empty.
            counts = [size * (r % 3) // 2 for r in range(world)]
            for dtype in ("float32", "int64", "bool") if size < LARGE // world else ("float32",):
                done += 1
                given = [blocks(dtype, "sum", world, size, r) for r in range(world)]
                expected = reduced(dtype, "sum", given)
                total, bound = expected
                for algorithm in _C.collective_algorithms("reduce_scatter"):
                    output = np.empty(size, dtype)
                    group.reduce_scatter(output, given[me], algorithm=algorithm)
                    part = slice(me * size, (me + 1) * size)
                    check_part(output, total, bound, part, f"reduce_scatter {algorithm}")
                for algorithm in _C.collective_algorithms("all_gather"):
                    mine = given[me][:size]
                    everything = np.empty(world * size, dtype)
                    group.all_gather(everything, mine, algorithm=algorithm)
                    assert np.array_equal(everything, np.concatenate([g[:size] for g in given]))
                    uneven = np.empty(sum(counts), dtype)
                    group.all_gather(
                        uneven, given[me][: counts[me]], counts=counts, algorithm=algorithm
                    )
                    wanted = [g[:count] for g, count in zip(given, counts, strict=True)]
                    assert np.array_equal(uneven, np.concatenate(wanted))
                for root in {0, world - 1}:
                    for algorithm in _C.collective_algorithms("broadcast"):
                        data = given[me].copy()
                        group.broadcast(data, root, algorithm=algorithm)
                        assert np.array_equal(data, given[root])
                        data = given[me].copy()
                        group.reduce(data, root, algorithm=algorithm)
                        if me == root:
                            check_part(data, total, bound, slice(None), f"reduce {algorithm}")
                        else:
                            assert np.array_equal(data, given[me])
                    gathered = np.empty(sum(counts), dtype) if me == root else None
                    group.gather(gathered, given[me][: counts[me]], root, counts=counts)
                    if me == root:
                        assert np.array_equal(gathered, np.concatenate(wanted))
                    block = np.empty(size, dtype)
                    group.scatter(block, given[root] if me == root else None, root)
                    assert np.array_equal(block, given[root][me * size : (me + 1) * size])
                turned = np.empty(world * size, dtype)
                group.all_to_all(turned, given[me])
                wanted = [g[me * size : (me + 1) * size] for g in given]
                assert np.array_equal(turned, np.concatenate(wanted))
                check_uneven_all_to_all(group, given, me, size)
            group.barrier()
    return done


def check_part(got: np.ndarray, total: object, bound: object, part: slice, what: str) -> None:
    some = bound if np.isscalar(bound) else bound[part]  # type: ignore[index]
    check(got, (total[part], some), what)  # type: ignore[index]


def check_uneven_all_to_all(group: object, given: list[np.ndarray], me: int, size: int) -> None:
    world = len(given)
    counts = [[size * ((a + 2 * b) % 3) // 3 for b in range(world)] for a in range(world)]
    sends, receives = counts[me], [counts[other][me] for other in range(world)]
    output = np.empty(sum(receives), given[0].dtype)
    group.all_to_all(  # type: ignore[attr-defined]
        output, given[me][: sum(sends)], send_counts=sends, receive_counts=receives
    )
    wanted = [
        given[other][sum(counts[other][:me]) :][: counts[other][me]] for other in range(world)
    ]
    assert np.array_equal(output, np.concatenate(wanted))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world", one_on_verbs(WORLDS, 3))
def test_every_other_collective(provider: str, device_name: str | None, world: int) -> None:
    done = launch(every_other, provider, device_name, ranks=world, timeout=220)
    assert set(done) == {13}


def asynchronous(rank: Rank, provider: str, device: str | None) -> float:
    with make_group(rank, provider, device) as group:
        tensors = [
            np.full(size, rank.index + 1.0, np.float32) for size in (10, 100_000, 3, 1 << 20)
        ]
        works = [group.all_reduce(tensor, "avg", async_op=True) for tensor in tensors]
        for work in works:
            assert work is not None
            work.wait()
            assert work.done()
        mean = (rank.world + 1) / 2
        assert all(np.all(tensor == mean) for tensor in tensors)
        assert group.sequence == 4
        return float(tensors[0][0])


def test_asynchronous(provider: str, device_name: str | None) -> None:
    assert launch(asynchronous, provider, device_name, ranks=3) == [2.0] * 3


def awaited(rank: Rank, provider: str, device: str | None) -> int:
    import asyncio

    async def both(group: object) -> int:
        one, other = np.ones(10, np.int32), np.ones(100_000, np.int32)
        await asyncio.gather(
            _awaited(group.all_reduce(one, async_op=True)),  # type: ignore[attr-defined]
            _awaited(group.all_reduce(other, async_op=True)),  # type: ignore[attr-defined]
        )
        return int(one[0] + other[-1])

    with make_group(rank, provider, device) as group:
        return asyncio.run(both(group))


async def _awaited(work: _C.CollectiveWork) -> None:
    await work


def test_awaited(provider: str, device_name: str | None) -> None:
    assert launch(awaited, provider, device_name, ranks=2) == [4, 4]


def subgroups(rank: Rank, provider: str, device: str | None) -> list[int]:
    sums = []
    with make_group(rank, provider, device) as group:
        halves = [group.subgroup([0, 2]), group.subgroup([3, 1])]
        assert sum(half is not None for half in halves) == 1
        for half in halves:
            if half is None:
                continue
            with half:
                data = np.array([rank.index], np.int64)
                half.all_reduce(data)
                sums += [int(data[0]), half.rank]
        group.barrier()
    return sums


def test_subgroups(provider: str, device_name: str | None) -> None:
    assert launch(subgroups, provider, device_name, ranks=4) == [[2, 0], [4, 1], [2, 1], [4, 0]]


def in_place(rank: Rank, provider: str, device: str | None) -> int:
    me, world = rank.index, rank.world
    with make_group(rank, provider, device) as group:
        for size in (10, 100_000):
            data = np.repeat(np.arange(world), size).astype(np.int64)
            mine = data[me * size : (me + 1) * size]
            group.all_gather(data, mine)  # a block of its own output
            assert np.array_equal(data, np.repeat(np.arange(world), size))
            group.reduce_scatter(mine, data)  # a block of its own input
            assert np.all(mine == me * world)
            turned = np.repeat(np.arange(world) + 10 * me, size)
            group.all_to_all(turned, turned)
            assert np.array_equal(turned, np.repeat(np.arange(world) * 10 + me, size))
    return world


def test_in_place(provider: str, device_name: str | None) -> None:
    assert launch(in_place, provider, device_name, ranks=3) == [3] * 3


def torch_types(rank: Rank, provider: str, device: str | None) -> int:
    import torch

    done = 0
    with make_group(rank, provider, device) as group:
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int16, torch.bool):
            data = torch.full((1001,), rank.index + 1).to(dtype)
            group.all_reduce(data)
            wanted = torch.full((1001,), sum(range(1, rank.world + 1))).to(dtype)
            assert torch.equal(data, wanted), dtype
            done += 1
        nan = torch.full((5,), float("nan") if rank.index == 1 else 1.0)
        group.all_reduce(nan, "max")
        assert torch.isnan(nan).all()
        eight = torch.full((7,), rank.index, dtype=torch.uint8).view(torch.float8_e4m3fn)
        group.broadcast(eight, 1)
        assert (eight.view(torch.uint8) == 1).all()
        with pytest.raises(UsageError, match="are moved"):
            group.all_reduce(eight)
        with pytest.raises(UsageError, match="one piece"):
            group.all_reduce(torch.zeros(4, 4).t()[:2])
    return done


@pytest.mark.torch
def test_torch_types(provider: str, device_name: str | None) -> None:
    pytest.importorskip("torch")
    assert launch(torch_types, provider, device_name, ranks=2) == [5, 5]
