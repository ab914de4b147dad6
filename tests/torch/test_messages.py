"""send, recv and what is made of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.launch import Rank, launch
from tests.torch.groups import process_group


def around_a_ring(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        following, before = (rank.index + 1) % rank.world, (rank.index - 1) % rank.world
        for size in (0, 1, 5000, 1 << 20):
            mine = torch.arange(float(size)) + rank.index
            got = torch.empty(size)
            work = dist.isend(mine, following, tag=size)
            assert dist.recv(got, before, tag=size) == before
            work.wait()
            assert torch.equal(got, torch.arange(float(size)) + before)
        # Elements that lie apart.
        got = torch.zeros(4, 3).t()
        operations = [
            dist.P2POp(dist.isend, torch.full((4, 3), float(rank.index)).t(), following),
            dist.P2POp(dist.irecv, got, before),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.all(got == before)
        # From whoever comes first.
        if rank.index == 0:
            heard = set()
            for _ in range(rank.world - 1):
                source = dist.recv(got := torch.empty(2))
                assert torch.all(got == source)
                heard.add(source)
            assert heard == set(range(1, rank.world))
        else:
            dist.send(torch.full((2,), float(rank.index)), 0)
        objects = [{"from": rank.index}]
        if rank.index == 0:
            dist.send_object_list(objects, 1)
        elif rank.index == 1:
            dist.recv_object_list(objects, 0)
            assert objects == [{"from": 0}]
        dist.barrier()


@pytest.mark.parametrize("world", [2, 4])
def test_messages(tmp_path: Path, world: int) -> None:
    launch(around_a_ring, str(tmp_path), ranks=world)


def one_is_missing(rank: Rank, folder: str) -> str:
    with process_group(rank, folder) as dist:
        backend = dist.group.WORLD._get_backend(__import__("torch").device("cpu"))
        backend.monitored_barrier(timedelta(seconds=10))
        rank.barrier()
        said = ""
        if rank.index == 0:
            with pytest.raises(RuntimeError) as caught:
                backend.monitored_barrier(timedelta(seconds=0.3), wait_all_ranks=True)
            said = str(caught.value)
        rank.barrier()
        return said


def test_a_monitored_barrier_names_who_is_missing(tmp_path: Path) -> None:
    assert "Ranks 1, 2 failed to pass" in launch(one_is_missing, str(tmp_path), ranks=3)[0]
