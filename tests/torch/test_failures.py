"""What becomes of a process group when something goes wrong, and of a new one after it."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.launch import Rank, Ranks, launch
from tests.torch.groups import process_group

WORLD = 4
VICTIM = 2


def calls(dist: Any, size: int) -> dict[str, Any]:
    import torch

    one, every = torch.ones(size), torch.ones(size * dist.get_world_size())
    return {
        "all_reduce": lambda: dist.all_reduce(one),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(every), every),
    }


def over_and_over(call: Any) -> None:
    for _ in range(1_000_000):
        call()


#: What each collective does then is tested with groups of rdmatx (test_group_failures.py).
COLLECTIVES = ("all_reduce", "all_to_all")


def outlive(rank: Rank, folder: str, collective: str) -> tuple[str, str]:
    """Calls it over and over until it fails; the error's class and text."""
    with process_group(rank, folder) as dist:
        dist.barrier()
        rank.tell("ready")
        with pytest.raises(dist.DistBackendError) as caught:
            over_and_over(calls(dist, 10_000)[collective])
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
    survivors = [index for index in range(rank.world) if index != VICTIM]
    again(Rank_of(rank, survivors), folder)
    return type(caught.value).__name__, str(caught.value)


class Rank_of:  # noqa: N801
    """A rank among some of the ranks."""

    def __init__(self, rank: Rank, members: list[int]) -> None:
        self.index, self.world = members.index(rank.index), len(members)


def again(rank: Any, folder: str) -> None:
    """A new default group of these ranks, in the same processes."""
    import torch

    with process_group(rank, folder, name="again") as dist:
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert torch.all(tensor == rank.world)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_kill(tmp_path: Path, collective: str) -> None:
    with Ranks(outlive, str(tmp_path), collective, ranks=WORLD) as ranks:
        for index in range(WORLD):
            assert ranks.hear(index) == "ready"
        ranks.kill(VICTIM)
        for index, result in enumerate(ranks.results()):
            if index != VICTIM:
                kind, text = result
                assert kind == "DistBackendError"
                assert f"rank {VICTIM} " in text


def stopped(rank: Rank, folder: str) -> str:
    import torch

    with process_group(rank, folder) as dist:
        dist.barrier()
        rank.tell("ready")
        rank.listen()
        dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=2))
        with pytest.raises(dist.DistBackendError) as caught:
            over_and_over(calls(dist, 1000)["all_reduce"])
        return str(caught.value)


def test_stopped(tmp_path: Path) -> None:
    with Ranks(stopped, str(tmp_path), ranks=WORLD) as ranks:
        for index in range(WORLD):
            assert ranks.hear(index) == "ready"
        ranks.kill(VICTIM, signal.SIGSTOP)
        for index in range(WORLD):
            if index != VICTIM:
                ranks.tell(index, "go")
        for index in range(WORLD):
            if index != VICTIM:
                assert "was not done within 2 s" in ranks.result(index)
        ranks.kill(VICTIM)


def aborted(rank: Rank, folder: str) -> str:
    import torch

    with process_group(rank, folder) as dist:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        rank.barrier()  # none hears of it before it looks
        future = None
        if rank.index == VICTIM:
            # Somebody waits meanwhile, and a future is pending.
            future = dist.irecv(torch.ones(3), 0).get_future()
            timer = threading.Timer(0.2, backend.abort)
            timer.start()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.recv(torch.ones(3), (rank.index + 1) % rank.world, tag=5)
        if future is not None:
            timer.join()
            with pytest.raises(dist.DistBackendError, match="aborted"):
                future.wait()
    again(rank, folder)
    return str(caught.value)


def test_abort_from_another_thread(tmp_path: Path) -> None:
    for text in launch(aborted, str(tmp_path), ranks=WORLD):
        assert "aborted" in text


def mismatched(rank: Rank, folder: str) -> str:
    import torch

    with process_group(rank, folder) as dist:
        rank.barrier()  # none hears of it before it looks
        with pytest.raises(dist.DistBackendError) as caught:
            over_and_over(lambda: dist.all_reduce(torch.ones(20 if rank.index == VICTIM else 10)))
        return str(caught.value)


def test_calls_that_differ(tmp_path: Path) -> None:
    for text in launch(mismatched, str(tmp_path), ranks=WORLD):
        assert "called different things" in text
        assert "20 float32" in text
        assert "10 float32" in text


def senseless(rank: Rank, folder: str) -> None:
    """Wrong arguments are refused in words; the group is as it was."""
    import torch

    with process_group(rank, folder) as dist:
        one, world = torch.ones(4), rank.world
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        with pytest.raises(ValueError, match="one of tensors a rank"):
            backend.allreduce([one, one])
        with pytest.raises(ValueError, match="the root is a rank from 0"):
            backend.broadcast(one, root=world)
        with pytest.raises(ValueError, match=f"takes {world} output tensors"):
            dist.all_gather([torch.ones(4)] * (world + 1), one)
        with pytest.raises(ValueError, match="has 3 elements"):
            dist.all_gather_into_tensor(torch.ones(3), one)
        with pytest.raises(ValueError, match="has 5 elements"):
            dist.reduce_scatter_tensor(one, torch.ones(5))
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_reduce(torch.ones(1).expand(4))
        with pytest.raises(ValueError, match="split sizes make 3 rows"):
            dist.all_to_all_single(
                torch.ones(4), one, [3] + [0] * (world - 1), [4] + [0] * (world - 1)
            )
        dist.all_reduce(one)
        assert torch.all(one == world)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    launch(senseless, str(tmp_path), ranks=2)
