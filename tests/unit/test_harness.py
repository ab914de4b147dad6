"""The test harness itself: what it reports when ranks fail, hang, die or leave something open."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests import leaks
from tests.launch import ROOT, Rank, RankFailure, Ranks, launch

pytest_plugins = ["pytester"]


def add_ranks(rank: Rank, offset: int) -> int:
    return rank.index + offset + sum(rank.exchange(rank.index) for _ in range(3))


def fail_on_one(rank: Rank) -> None:
    if rank.index == 1:
        raise ValueError("no luck")
    rank.receive(1)


def hang(rank: Rank) -> None:
    threading.Event().wait()


def die(rank: Rank) -> None:
    os._exit(3)


def leave_file_open(rank: Rank) -> None:
    os.open("/dev/null", os.O_RDONLY)


def tell_and_wait(rank: Rank) -> str:
    rank.tell({"pid": os.getpid()})
    try:
        rank.receive(1 - rank.index)
    except EOFError:
        return "peer gone"
    return "peer spoke"


def test_results_come_in_rank_order() -> None:
    assert launch(add_ranks, 10, ranks=2) == [13, 11]


def test_failure_names_the_rank_and_has_its_traceback() -> None:
    with pytest.raises(
        RankFailure, match=r"(?s)rank 1 of 2 failed.*fail_on_one.*ValueError: no luck"
    ):
        launch(fail_on_one, ranks=2)


def test_timeout_shows_the_stack_of_every_rank() -> None:
    with pytest.raises(RankFailure) as caught:
        launch(hang, ranks=2, timeout=1.0)
    text = str(caught.value)
    assert "did not finish" in text
    for rank in (0, 1):
        assert f"[rank {rank}]" in text
    assert text.count("in hang") == 2


def test_death_is_told_with_its_status() -> None:
    with pytest.raises(RankFailure, match="rank 0 ended without a result: exit status 3"):
        launch(die, ranks=1)


def test_leak_in_a_rank_fails_it() -> None:
    with pytest.raises(RankFailure, match=r"file descriptor .*: /dev/null"):
        launch(leave_file_open, ranks=1)


def test_a_killed_rank_is_seen_by_its_peer_and_by_nobody_else() -> None:
    with Ranks(tell_and_wait, ranks=2) as ranks:
        assert ranks.hear(0) == {"pid": ranks.pid(0)}
        ranks.kill(1, signal.SIGKILL)
        assert ranks.results() == ["peer gone", None]


def test_leaks_are_named() -> None:
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    reader, writer = os.pipe()
    try:
        with pytest.raises(leaks.LeakError, match=r"(?s)thread .*forgotten.*pipe:"):
            leaks.check(before, settle=0.1)
    finally:
        stop.set()
        thread.join()
        os.close(reader)
        os.close(writer)
    leaks.check(before)


def test_what_is_on_its_way_out_is_waited_for() -> None:
    before = leaks.snapshot()
    threading.Thread(target=time.sleep, args=(0.2,)).start()
    leaks.check(before)


INNER = """
import threading
import pytest
from tests.lanes import lane_missing, unsupported

@pytest.mark.timeout(0.5)
def test_slow():
    threading.Event().wait()

def test_skips_its_lane():
    lane_missing("rxe", "no device")

@pytest.mark.torch
def test_skips_with_a_marker():
    pytest.skip("not today")

def test_unsupported():
    unsupported("rxe0", "resizing")
"""


def test_time_limits_and_promised_lanes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATX_TEST_REQUIRE", "rxe, torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(INNER)
    result = pytester.runpytest_subprocess("-p", "tests.conftest", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=3, skipped=1)
    result.stdout.fnmatch_lines(
        ["*not done within 0.5 s*", "*promises the lane 'rxe'*", "*promises the lane 'torch'*"]
    )


def test_without_a_promise_a_lane_may_be_missing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RDMATX_TEST_REQUIRE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(INNER)
    result = pytester.runpytest_subprocess(
        "-p", "tests.conftest", "-p", "no:cacheprovider", "-k", "not slow"
    )
    result.assert_outcomes(skipped=3, deselected=1)
