"""What becomes of a group when a rank dies, stops, aborts, or calls something else; and of those after it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rdmatx
from rdmatx import errors
from tests.launch import TIME_SCALE, Rank, Ranks, launch
from tests.multiprocess.groups import make_group, one_on_verbs

WORLD = 4
VICTIM = 2
#: The promise is three seconds; what is over it is a hang of some kind.
BOUND = 3.0 * TIME_SCALE


def call(group: rdmatx.Group, collective: str, size: int) -> None:
    """One collective of the group, with memory of its own."""
    one = np.ones(size, np.float32)
    all_of_them = np.ones(size * group.world, np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.all_reduce(one),
        "reduce_scatter": lambda: group.reduce_scatter(one, all_of_them),
        "all_gather": lambda: group.all_gather(all_of_them, one),
        "broadcast": lambda: group.broadcast(one, VICTIM),
        "reduce": lambda: group.reduce(one, 0),
        "gather": lambda: group.gather(all_of_them, one, 0),
        "scatter": lambda: group.scatter(one, all_of_them, VICTIM),
        "all_to_all": lambda: group.all_to_all(np.empty_like(all_of_them), all_of_them),
        "barrier": lambda: group.barrier(),
    }
    calls[collective]()


COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)


def again_without(rank: Rank, provider: str, device: str | None, without: int) -> float:
    """A new group of those that live, in the same processes."""
    living = [index for index in range(rank.world) if index != without]
    with make_group(rank, provider, device, ranks=living, name="again") as group:
        data = np.ones(100_000, np.float32)
        group.all_reduce(data)
        return float(data[-1])


def outlive(
    rank: Rank, provider: str, device: str | None, collective: str, size: int, without: int
) -> tuple[str, str, float]:
    """Calls a collective over and over until it fails; the error's class and text, and a new group."""
    with make_group(rank, provider, device) as group:
        call(group, collective, size)
        rank.tell("ready")
        failed_at = 0.0
        try:
            while True:
                call(group, collective, size)
        except errors.Error as error:
            failed_at = time.time()
            kind, text = type(error).__name__, str(error)
            # Not all is over for the rank that finished early: the next call tells it.
            with pytest.raises(type(error)):
                group.barrier()
            assert group.errored() is not None
        except BaseException as error:
            raise AssertionError(f"no error of rdmatx: {error!r}") from error
    again = again_without(rank, provider, device, without)
    assert again == rank.world - 1
    return kind, text, failed_at


@pytest.mark.timeout(120)
@pytest.mark.parametrize("collective", one_on_verbs(COLLECTIVES, "all_reduce"))
def test_kill(provider: str, device_name: str | None, collective: str) -> None:
    size = 100_000 if collective != "barrier" else 0
    with Ranks(
        outlive, provider, device_name, collective, size, VICTIM, ranks=WORLD, timeout=100
    ) as ranks:
        for index in range(WORLD):
            assert ranks.hear(index) == "ready"
        time.sleep(0.05)
        killed_at = time.time()
        ranks.kill(VICTIM)
        for index, result in enumerate(ranks.results()):
            if index == VICTIM:
                continue
            kind, text, failed_at = result
            assert kind == "PeerLostError", text
            assert f"rank {VICTIM} " in text
            assert failed_at - killed_at < BOUND, (index, failed_at - killed_at)


def idle_member(rank: Rank, provider: str, device: str | None, victim: int) -> tuple[str, float]:
    """Is in no call when another rank dies; the next one tells."""
    with make_group(rank, provider, device) as group:
        group.barrier()
        rank.tell("ready")
        rank.listen()
        until = time.monotonic() + 20
        while group.errored() is None and time.monotonic() < until:
            time.sleep(0.01)
        seen_at = time.time()
        with pytest.raises(errors.PeerLostError) as caught:
            group.barrier()
        return str(caught.value), seen_at


@pytest.mark.parametrize("victim", one_on_verbs([0, 3], 3))
def test_kill_while_nobody_is_in_a_call(
    provider: str, device_name: str | None, victim: int
) -> None:
    with Ranks(idle_member, provider, device_name, victim, ranks=5) as ranks:
        for index in range(5):
            assert ranks.hear(index) == "ready"
        killed_at = time.time()
        ranks.kill(victim)
        for index in range(5):
            if index != victim:
                ranks.tell(index, "go")
        for index, result in enumerate(ranks.results()):
            if index != victim:
                text, seen_at = result
                assert f"rank {victim} " in text
                assert seen_at - killed_at < BOUND


def stopped(rank: Rank, provider: str, device: str | None, collective: str) -> tuple[str, str]:
    """Rank VICTIM is stopped by the test; the others run into their timeout."""
    group = make_group(rank, provider, device)
    call(group, collective, 1000)
    rank.tell("ready")
    rank.listen()
    group.set_timeout(1.0)
    try:
        for _ in range(1000):
            call(group, collective, 1000)
    except errors.Error as error:
        return type(error).__name__, str(error)
    finally:
        group.close()
    raise AssertionError("nothing failed")


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "collective", one_on_verbs(["all_reduce", "broadcast", "barrier"], "barrier")
)
def test_stopped(provider: str, device_name: str | None, collective: str) -> None:
    with Ranks(stopped, provider, device_name, collective, ranks=WORLD, timeout=80) as ranks:
        for index in range(WORLD):
            assert ranks.hear(index) == "ready"
        ranks.kill(VICTIM, signal.SIGSTOP)
        for index in range(WORLD):
            if index != VICTIM:
                ranks.tell(index, "go")
        for index in range(WORLD):
            if index == VICTIM:
                continue
            kind, text = ranks.result(index)
            assert kind == "TimeoutError", text
            assert "was not done within 1 s" in text
            assert "rank" in text
        ranks.kill(VICTIM)


def aborted(
    rank: Rank, provider: str, device: str | None, collective: str
) -> tuple[str, str, float]:
    with make_group(rank, provider, device) as group:
        call(group, collective, 1000)
        rank.barrier()  # none hears of it while its group is in the making, or before it looks
        if rank.index == VICTIM:
            threading.Timer(0.2, group.abort, ["the user said so"]).start()
        kind, text = "", ""
        try:
            for _ in range(1_000_000):
                call(group, collective, 1000)
        except errors.Error as error:
            kind, text = type(error).__name__, str(error)
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    with make_group(rank, provider, device, name="again") as group:
        data = np.ones(10, np.float32)
        group.all_reduce(data)
    return kind, text, float(data[0])


@pytest.mark.parametrize("collective", one_on_verbs(COLLECTIVES, "broadcast"))
def test_abort_from_another_thread(provider: str, device_name: str | None, collective: str) -> None:
    results = launch(aborted, provider, device_name, collective, ranks=WORLD)
    for index, (kind, text, total) in enumerate(results):
        assert kind == ("ClosedError" if index == VICTIM else "PeerLostError"), text
        assert "the user said so" in text
        assert total == WORLD


def mismatched(rank: Rank, provider: str, device: str | None, what: str) -> tuple[str, str]:
    """Rank VICTIM calls something else."""
    odd = rank.index == VICTIM
    with make_group(rank, provider, device) as group:
        data = np.ones(500, np.float32)
        try:
            group.barrier()  # all are there: none hears of it while its group is still in the making
            if what == "operation":
                call(group, "barrier" if odd else "all_reduce", 500)
            elif what == "size":
                group.all_reduce(data[: 400 if odd else 500])
            elif what == "dtype":
                group.all_reduce(data.view(np.int32) if odd else data)
            elif what == "op":
                group.all_reduce(data, "max" if odd else "sum")
            else:
                group.broadcast(data, 1 if odd else 0)
            # A rank whose part was over before it heard of it hears of it here.
            for _ in range(1000):
                group.barrier()
        except errors.Error as error:
            return type(error).__name__, str(error)
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("what", one_on_verbs(["operation", "size", "dtype", "op", "root"], "size"))
def test_mismatch(provider: str, device_name: str | None, what: str) -> None:
    for kind, text in launch(mismatched, provider, device_name, what, ranks=WORLD):
        assert kind == "UsageError", text
        assert "called different things" in text
        if what != "operation":
            shown = {"size": ("500", "400"), "dtype": ("int32", "float32"), "op": ("max", "sum")}
            for part in shown.get(what, ("root 0", "root 1")):
                assert part in text
        else:
            assert "barrier" in text
            assert "all_reduce" in text


def closes_early(rank: Rank, provider: str, device: str | None) -> str:
    group = make_group(rank, provider, device)
    data = np.ones(1000, np.float32)
    group.all_reduce(data)
    rank.barrier()
    if rank.index == 1:
        group.close()
        with pytest.raises(errors.ClosedError):
            group.barrier()
        rank.barrier()
        return ""
    try:
        group.all_reduce(data, timeout=10)
    except errors.PeerLostError as error:
        return str(error)
    finally:
        group.close()
        rank.barrier()
    raise AssertionError("nothing failed")


def test_a_rank_that_closed_is_named(provider: str, device_name: str | None) -> None:
    texts = launch(closes_early, provider, device_name, ranks=3)
    assert "rank 1" in texts[0]
    assert "rank 1" in texts[2]
