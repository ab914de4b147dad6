"""Every collective of torch.distributed, against what torch computes in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launch import Rank, launch
from tests.torch.groups import process_group

SIZES = (0, 1, 3, 1000, 100_000)
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")


def values(dtype: str, seed: int, size: int) -> Any:
    """Small whole numbers: every order of summing gives the same, in every dtype."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 4, (size,), generator=generator)
    return drawn.to(getattr(torch, dtype))


def views_of(tensor: Any) -> list[Any]:
    """The tensor, and tensors of the same content whose elements lie elsewhere."""
    import torch

    spread = torch.full((3 * tensor.numel() + 1,), 7, dtype=tensor.dtype)[1::3]
    spread.copy_(tensor)
    return [tensor.clone(), spread]


def all_reduce(rank: Rank, folder: str) -> int:
    import torch

    done = 0
    with process_group(rank, folder) as dist:
        everybody = range(rank.world)
        ops = {
            dist.ReduceOp.SUM: lambda parts: parts.sum(0),
            dist.ReduceOp.PRODUCT: lambda parts: parts.prod(0),
            dist.ReduceOp.MIN: lambda parts: parts.amin(0),
            dist.ReduceOp.MAX: lambda parts: parts.amax(0),
        }
        for dtype in (*FLOATS, *INTEGERS):
            for size in SIZES:
                parts = torch.stack([values(dtype, r, size) for r in everybody])
                for op, reference in ops.items():
                    expected = reference(parts).to(parts.dtype)
                    for mine in views_of(parts[rank.index]):
                        dist.all_reduce(mine, op)
                        assert torch.equal(mine, expected), (dtype, size, op)
                        done += 1
        mine = torch.full((5,), rank.index + 1.0)
        dist.all_reduce(mine, dist.ReduceOp.AVG)
        assert torch.equal(mine, torch.full((5,), (rank.world + 1) / 2))
        mine = torch.full((5,), rank.index + 1.0)
        dist.all_reduce(mine, dist._make_nccl_premul_sum(0.5))
        assert torch.equal(mine, torch.full((5,), rank.world * (rank.world + 1) / 4))
        flags = torch.tensor([rank.index == 0, True, False])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        assert flags.tolist() == [True, True, False]
        bits = torch.tensor([1 << rank.index, 255])
        dist.all_reduce(bits, dist.ReduceOp.BOR)
        assert bits.tolist() == [(1 << rank.world) - 1, 255]
        wave = torch.full((3,), complex(1, rank.index))
        dist.all_reduce(wave)
        assert torch.equal(wave, torch.full((3,), complex(rank.world, sum(everybody))))
    return done


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_reduce(tmp_path: Path, world: int) -> None:
    assert launch(all_reduce, str(tmp_path), ranks=world) == [9 * 5 * 4 * 2] * world


def rooted(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        for dtype in ("float32", "int64", "bfloat16", "uint16"):
            for size in SIZES:
                parts = [values(dtype, r, size) for r in range(rank.world)]
                for root in {0, rank.world - 1}:
                    for mine in views_of(parts[rank.index]):
                        dist.broadcast(mine, root)
                        assert torch.equal(mine, parts[root])
                    for mine in views_of(parts[rank.index]):
                        got = (
                            [views_of(torch.zeros_like(mine))[1] for _ in parts]
                            if rank.index == root
                            else None
                        )
                        dist.gather(mine, got, root)
                        if got is not None:
                            assert all(torch.equal(a, b) for a, b in zip(got, parts, strict=True))
                        given = parts if rank.index == root else None
                        output = views_of(torch.zeros_like(mine))[1]
                        dist.scatter(output, given, root)
                        assert torch.equal(output, parts[rank.index])
                    if dtype != "uint16":
                        for mine in views_of(parts[rank.index]):
                            dist.reduce(mine, root)
                            wanted = sum(parts) if rank.index == root else parts[rank.index]
                            assert torch.equal(mine, wanted)
        with pytest.raises(TypeError, match="reduces none"):
            dist.all_reduce(torch.zeros(3, dtype=torch.uint16))
        dist.barrier()


@pytest.mark.parametrize("world", [1, 3])
def test_broadcast_reduce_gather_scatter(tmp_path: Path, world: int) -> None:
    launch(rooted, str(tmp_path), ranks=world)


def gathering(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        world, me = rank.world, rank.index
        for dtype in ("float32", "int16", "float8_e4m3fn"):
            for size in SIZES:
                parts = [values(dtype, r, size) for r in range(world)]
                joined = torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
                for mine in [parts[me]] if "float8" in dtype else views_of(parts[me]):
                    got = [torch.empty_like(part) for part in parts]
                    dist.all_gather(got, mine)
                    assert all(same(a, b) for a, b in zip(got, parts, strict=True))
                    output = torch.empty(world * size, dtype=mine.dtype)
                    dist.all_gather_into_tensor(output, mine)
                    assert same(output, joined)
                if "float8" in dtype:
                    continue
                # A block for each rank, of its own.
                blocks = [
                    [values(dtype, 10 * r + b, size) for b in range(world)] for r in range(world)
                ]
                total = sum(blocks[r][me] for r in range(world))
                for output in views_of(torch.empty_like(total)):
                    dist.reduce_scatter(output, blocks[me])
                    assert torch.equal(output, total)
                    output.zero_()
                    dist.reduce_scatter_tensor(output, torch.cat(blocks[me]))
                    assert torch.equal(output, total)
                for got in ([torch.empty_like(total) for _ in range(world)],):
                    dist.all_to_all(got, blocks[me])
                    assert all(torch.equal(got[r], blocks[r][me]) for r in range(world))
                output = torch.empty(world * size, dtype=total.dtype)
                dist.all_to_all_single(output, torch.cat(blocks[me]))
                assert torch.equal(output, torch.cat([blocks[r][me] for r in range(world)]))
        uneven(dist, me, world)


def same(one: Any, other: Any) -> bool:
    import torch

    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


def uneven(dist: Any, me: int, world: int) -> None:
    """Blocks of several sizes, some of them empty."""
    import torch

    sizes = [3 * (r % 3) for r in range(world)]
    parts = [torch.full((size, 2), float(r)) for r, size in enumerate(sizes)]
    got = [torch.empty_like(part) for part in parts]
    dist.all_gather(got, parts[me])
    assert all(torch.equal(a, b) for a, b in zip(got, parts, strict=True))
    output = torch.empty(sizes[me], 2)
    dist.reduce_scatter(output, parts)
    assert torch.equal(output, parts[me] * world)
    sends = [[(a + 2 * b) % 3 for b in range(world)] for a in range(world)]
    given = torch.arange(2.0 * sum(sends[me])).view(-1, 2) + 100 * me
    receives = [sends[r][me] for r in range(world)]
    output = torch.full((sum(receives), 2), -1.0)
    dist.all_to_all_single(output, given, receives, sends[me])
    expected = []
    for r in range(world):
        theirs = torch.arange(2.0 * sum(sends[r])).view(-1, 2) + 100 * r
        expected.append(theirs.split(sends[r])[me])
    assert torch.equal(output, torch.cat(expected))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_gather_reduce_scatter_all_to_all(tmp_path: Path, world: int) -> None:
    launch(gathering, str(tmp_path), ranks=world)


def sparse(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        world, me = rank.world, rank.index
        # Rank r has r + 1 rows (one has none), one of which all have; in the last round they are rows of two.
        for width in ((), (2,)):
            total = torch.zeros((10, *width))
            for r in range(world):
                if r == 1:
                    continue
                for row in range(r + 1):
                    total[row] += r + 1
            rows = [] if me == 1 else list(range(me + 1))
            mine = torch.sparse_coo_tensor(
                torch.tensor([rows], dtype=torch.long),
                torch.full((len(rows), *width), me + 1.0),
                (10, *width),
            )
            dist.all_reduce(mine)
            assert torch.equal(mine.to_dense(), total)
        with pytest.raises(ValueError, match="summed"):
            dist.all_reduce(mine, dist.ReduceOp.MAX)


@pytest.mark.parametrize("world", [1, 3])
def test_sparse_all_reduce(tmp_path: Path, world: int) -> None:
    launch(sparse, str(tmp_path), ranks=world)


def several(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        world, me = rank.world, rank.index
        tensors = [torch.full((n,), float(me)) for n in (1, 100, 0, 7)]
        dist.all_reduce_coalesced(tensors)
        assert all(torch.all(tensor == sum(range(world))) for tensor in tensors)
        # Asynchronous, several at a time, waited for in another order.
        tensors = [torch.full((10_000,), float(me + i)) for i in range(8)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
            assert work.is_completed()
            assert work.is_success()
        for i, tensor in enumerate(tensors):
            assert torch.all(tensor == sum(range(world)) + i * world)
        # A future is told, and what is chained to it runs, while nobody waits.
        tensor = torch.ones(1000)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert torch.all(doubled.wait() == 2 * world)
        outputs = [torch.empty(3) for _ in range(world)]
        future = dist.all_gather(outputs, torch.full((3,), float(me)), async_op=True).get_future()
        (gathered,) = future.wait()
        assert [float(t[0]) for t in gathered] == list(map(float, range(world)))
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors[:2]:
                dist.all_reduce(tensor)
        manager.wait()
        everyone = [None] * world
        dist.all_gather_object(everyone, {"rank": me})
        assert everyone == [{"rank": r} for r in range(world)]
        shared = [me, "text"] if me == 0 else [None, None]
        dist.broadcast_object_list(shared, 0)
        assert shared == [0, "text"]
        ends = sorted({0, world - 1})
        both = dist.new_group(ends)
        if me in ends:
            mine = torch.tensor([me + 1])
            dist.all_reduce(mine, group=both)
            assert mine.item() == sum(end + 1 for end in ends)
        dist.barrier()


@pytest.mark.parametrize("world", [1, 3])
def test_several_at_a_time(tmp_path: Path, world: int) -> None:
    launch(several, str(tmp_path), ranks=world)


def borrowed(rank: Rank, folder: str) -> None:
    """Memory of numpy, given up by all but the collective under way: it is held till then, and its end, which
    takes the GIL, stands in nobody's way."""
    import weakref

    import numpy as np
    import torch

    class Watched(np.ndarray):
        pass

    with process_group(rank, folder) as dist:
        for _ in range(200):
            array = np.ones(20_000, np.float32).view(Watched)
            gone = weakref.ref(array)
            dist.all_reduce(torch.from_numpy(array), async_op=True)
            del array
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait() if rank.index else work.get_future().wait()
        dist.barrier()
        assert gone() is None


@pytest.mark.parametrize("world", [2])
def test_memory_that_only_the_collective_holds(tmp_path: Path, world: int) -> None:
    launch(borrowed, str(tmp_path), ranks=world)
