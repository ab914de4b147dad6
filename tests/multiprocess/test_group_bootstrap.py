"""How groups come about: from the environment, from stores of torch, again and again, and not at all."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatx
from rdmatx import errors, tuning
from rdmatx.bootstrap import TCPStore
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE
from tests.multiprocess.groups import make_group


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def total_of_ranks(group: rdmatx.Group) -> int:
    data = np.array([group.rank + 1], np.int64)
    group.all_reduce(data)
    return int(data[0])


def from_environment(rank: Rank, device: str | None, provider: str, port: int, rounds: int) -> int:
    os.environ.update(
        RANK=str(rank.index),
        WORLD_SIZE=str(rank.world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    total = 0
    # Ranks that are ahead make their next group while others still close the one before.
    for _ in range(rounds):
        context = rdmatx.Context(device, provider, timeout=PATIENCE)
        with context, rdmatx.Group.from_env(context=context, timeout=PATIENCE) as group:
            assert repr(group) == f"<Group, rank {rank.index} of {rank.world}>"
            total += total_of_ranks(group)
        assert "closed" in repr(group)
    return total


def test_from_env_again_and_again(provider: str, device_name: str | None) -> None:
    assert launch(from_environment, device_name, provider, free_port(), 5, ranks=3) == [30] * 3


def test_a_world_of_one(provider: str, device_name: str | None) -> None:
    assert launch(from_environment, device_name, provider, free_port(), 2, ranks=1) == [2]


def by_torch(rank: Rank, provider: str, device: str | None, place: str) -> int:
    import torch.distributed as dist

    store: Any = dist.FileStore(place, rank.world)
    total = 0
    with rdmatx.Context(device, provider, timeout=PATIENCE) as context:
        for name in ("first", "second"):
            with rdmatx.Group(
                store, rank.index, rank.world, name=name, context=context, timeout=PATIENCE
            ) as group:
                total += total_of_ranks(group)
    return total


@pytest.mark.torch
def test_stores_of_torch(provider: str, device_name: str | None, tmp_path: Any) -> None:
    pytest.importorskip("torch")
    place = str(tmp_path / "store")
    assert launch(by_torch, provider, device_name, place, ranks=2) == [6, 6]


def with_secret(rank: Rank, provider: str, device: str | None, secret: str, other: str) -> str:
    with rdmatx.Context(device, provider, timeout=PATIENCE) as context:
        serving = rank.index == 0
        with TCPStore("127.0.0.1:0" if serving else rank.receive(0), serve=serving) as store:
            if serving:
                rank.send(1, store.address)
            try:
                with rdmatx.Group(
                    store,
                    rank.index,
                    2,
                    context=context,
                    timeout=2 if secret != other else PATIENCE,
                    secret=secret if serving else other,
                ) as group:
                    return str(total_of_ranks(group))
            except (errors.AuthenticationError, errors.TimeoutError) as error:
                return type(error).__name__


def test_secrets(provider: str, device_name: str | None) -> None:
    assert launch(with_secret, provider, device_name, "one", "one") == ["3", "3"]
    names = launch(with_secret, provider, device_name, "one", "other")
    assert names == ["TimeoutError", "AuthenticationError"]


def dies_in_the_making(rank: Rank, provider: str, device: str | None) -> str:
    """Rank 2 tells its address and comes no further."""
    serving = rank.index == 0
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        TCPStore("127.0.0.1:0" if serving else rank.receive(0), serve=serving) as store,
    ):
        if serving:
            for peer in (1, 2):
                rank.send(peer, store.address)
        if rank.index == 2:
            with context.listen("127.0.0.1:0") as listener:
                store.set("rdmatx/rank 2", listener.address.encode())
                rank.receive(0)
            return ""
        try:
            rdmatx.Group(store, rank.index, 3, context=context, timeout=1.0)
        except errors.TimeoutError as error:
            return str(error)
        finally:
            if serving:
                rank.send(2, "over")
    raise AssertionError("a group without one of its ranks")


def test_who_is_missing_is_named(provider: str, device_name: str | None) -> None:
    texts = launch(dies_in_the_making, provider, device_name, ranks=3)
    assert all("rank 2" in text and "did not come" in text for text in texts[:2])


def usage(rank: Rank, provider: str, device: str | None) -> int:
    with make_group(rank, provider, device) as group:
        data = np.ones(10, np.float32)
        for call, said in (
            (lambda: group.all_reduce(data, "mean"), "it is one of sum, prod"),
            (lambda: group.all_reduce(data, "bor"), "on bits"),
            (lambda: group.all_reduce(data, algorithm="tree"), "it has direct"),
            (lambda: group.all_reduce(data, algorithm="magic"), "no algorithm"),
            (lambda: group.broadcast(data, 7), "from 0 to 1"),
            (lambda: group.all_gather(np.ones(19, np.float32), data), "76 bytes"),
            (lambda: group.all_to_all(np.ones(9), np.ones(9)), "equal"),
            (lambda: group.all_to_all(data, data, send_counts=[5, 5]), "together"),
            (lambda: group.all_gather(data, data, counts=[1, 2, 3]), "3 counts for 2"),
            (lambda: group.all_reduce(data[::2]), "one piece"),
            (lambda: group.all_reduce(data.astype("uint16")), "are moved, not reduced"),
            (lambda: group.subgroup([0, 0]), "different ones"),
            (lambda: group.all_reduce(data, timeout=-1), "timeout"),
            (lambda: group.set_timeout(-1), "timeout"),
        ):
            with pytest.raises(errors.UsageError, match=said):
                call()
        with pytest.raises(errors.UsageError, match="read-only"):
            group.broadcast(b"constant")
        moved = np.arange(10, dtype="uint16") * rank.index
        group.broadcast(moved, 1)
        assert np.array_equal(moved, np.arange(10))
        # Nothing of it was sent, and the group goes on.
        assert group.errored() is None
        return total_of_ranks(group)


def test_mistakes_are_said_and_the_group_goes_on(provider: str, device_name: str | None) -> None:
    assert launch(usage, provider, device_name, ranks=2) == [3, 3]


def environment_chooses(rank: Rank, provider: str, device: str | None) -> str:
    os.environ["RDMATX_ALGORITHM"] = "ring" if rank.index == 0 else "direct"
    with make_group(rank, provider, device) as group:
        try:
            for _ in range(1000):
                total_of_ranks(group)
        except errors.UsageError as error:
            return str(error)
    raise AssertionError("nothing failed")


def test_the_environment_chooses_the_algorithm(provider: str, device_name: str | None) -> None:
    for text in launch(environment_chooses, provider, device_name, ranks=2):
        assert "ring" in text
        assert "direct" in text


def tuned(rank: Rank, provider: str, device: str | None, paths: list[str]) -> str:
    os.environ["RDMATX_TUNING"] = paths[rank.index]
    try:
        with make_group(rank, provider, device) as group:
            return str(total_of_ranks(group))
    except errors.UsageError as error:
        return str(error)


def test_rank_0s_table_holds_for_all(
    provider: str, device_name: str | None, tmp_path: Path
) -> None:
    names = []
    for name, algorithm in (("ring", "ring"), ("direct", "direct"), ("wrong", "tree")):
        names.append(str(tmp_path / name))
        Path(names[-1]).write_bytes(tuning.to_bytes([("all_reduce", 1, 1 << 62, algorithm, 65536)]))
    # Were each to choose by its own, they would call different things.
    assert launch(tuned, provider, device_name, names[:2], ranks=2) == ["3", "3"]
    (text,) = launch(tuned, provider, device_name, names[2:], ranks=1)
    assert 'all_reduce has no algorithm "tree"' in text
