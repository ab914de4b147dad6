"""The sums and the shape of benchmark reports; nothing here looks at a clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.launched import settings
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.bench.perftest import parse_result
from rdmatx.cli.bench.sample import Sample, best, ratio, summarize
from rdmatx.cli.bench.statistics import latency_percentiles, median, percentile, rounded
from rdmatx.cli.errors import CommandError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").is_dir()
BANDWIDTH_OUTPUT = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxe0
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:00:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             3.70               3.62     0.006905
---------------------------------------------------------------------------------------
"""
LATENCY_OUTPUT = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
    " 8       1000          10.10          90.00        11.20     \t       12.30       "
    "\t0.55   \t\t15.00    \t\t33.00   \n"
)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 1001)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.99) == 990
    assert percentile(values, 0.999) == 999
    assert percentile([7.0], 0.999) == 7
    assert latency_percentiles(list(reversed(values))) == {"p50": 500, "p99": 990, "p999": 999}


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_rounding_keeps_four_digits() -> None:
    assert rounded(0.000123456) == 0.0001235
    assert rounded(123456.0) == 123500


def test_bandwidth_summary_and_ratio() -> None:
    case = Case(op="write", mode="bw", bytes=1_000_000)
    ours = summarize(case, [Sample(1000, s, 0.5, True) for s in (0.1, 0.2, 10.0)])
    theirs = summarize(case, [Sample(1000, 0.4, 1.0, True)])
    assert ours.gbytes_per_s == 5.0
    assert ours.cpu_s_per_gb == 0.5
    assert theirs.gbytes_per_s == 2.5
    assert ratio(case, ours, theirs) == 2.0
    assert "lat_us" not in ours.fields(case)
    assert ours.fields(case, "peer_")["peer_gbytes_per_s"] == 5.0


def test_latency_summary_and_ratio() -> None:
    case = Case(op="send", mode="lat", bytes=8)
    ours = summarize(
        case, [Sample(10, 1.0, 0.1, True, {"p50": v, "p99": v, "p999": v}) for v in (1.0, 2.0, 9.0)]
    )
    theirs = summarize(case, [Sample(10, 1.0, 0.1, None, {"p50": 40.0, "p99": 50.0, "p999": 60.0})])
    assert ours.lat_us == {"p50": 2.0, "p99": 2.0, "p999": 2.0}
    assert ratio(case, ours, theirs) == 20.0
    assert theirs.verified is None
    assert "gbytes_per_s" not in ours.fields(case)


def test_one_wrong_round_makes_the_whole_wrong() -> None:
    case = Case(bytes=8)
    samples = [Sample(1, 1.0, 0.0, True), Sample(1, 1.0, 0.0, False)]
    assert summarize(case, samples).verified is False


def test_the_best_setting_is_the_peer() -> None:
    case = Case(op="send", mode="bw", bytes=1_000_000)
    slow = summarize(case, [Sample(1000, 0.4, 1.0, True)], "with")
    fast = summarize(case, [Sample(1000, 0.1, 1.0, True)], "without")
    assert best(case, [slow, fast]) == best(case, [fast, slow]) == fast
    assert fast.fields(case, "peer_")["peer_setting"] == "without"
    wrong = summarize(case, [Sample(1000, 0.4, 1.0, False)], "with")
    assert best(case, [fast, wrong]).verified is False
    alone = summarize(case, [Sample(1000, 0.4, 1.0, None)])
    assert best(case, [alone]) == alone
    assert "setting" not in alone.fields(case)


def test_the_best_setting_has_the_shortest_latency() -> None:
    case = Case(op="send", mode="lat", bytes=8)
    found = [
        summarize(case, [Sample(1, 1.0, 0.1, True, {"p50": p50, "p99": 9.0, "p999": 9.0})], name)
        for name, p50 in (("a", 2.0), ("b", 1.0), ("c", 3.0))
    ]
    assert best(case, found).setting == "b"


def test_mpirun_of_another_mpi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho Hydra\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with pytest.raises(CommandError, match="is not Open MPI's"):
        settings("mpi", Case(op="send"))


def test_no_bytes_no_cost_per_byte() -> None:
    case = Case(op="send", mode="lat", bytes=0)
    sample = Sample(1, 1.0, 0.1, True, {"p50": 1.0, "p99": 1.0, "p999": 1.0})
    assert summarize(case, [sample]).cpu_s_per_gb is None


def test_the_window_is_wide_for_small_and_narrow_for_large() -> None:
    assert Case(bytes=8).window == 64
    assert Case(bytes=64 << 10).window == 64
    assert Case(bytes=1 << 20).window == 4
    assert Case(bytes=1 << 30).window == 2


@pytest.mark.parametrize("huge", [False, True] if HUGE_PAGES else [False])
@pytest.mark.parametrize("nbytes", [0, 1, 8, 4097, 3 << 20])
def test_blocks_tell_rounds_apart(nbytes: int, huge: bool) -> None:
    block, copy = Block(nbytes, huge=huge), Block(nbytes, huge=huge)
    block.stamp(1)
    copy.view[:] = block.view
    assert copy.digest() == block.digest()
    if nbytes:
        block.stamp(2)
        assert copy.digest() != block.digest()
        copy.poison()
        assert set(copy.view) == {0xA5}


def test_perftest_output_is_read() -> None:
    assert parse_result(BANDWIDTH_OUTPUT, "ib_write_bw") == [65536, 1000, 3.7, 3.62, 0.006905]
    assert parse_result(LATENCY_OUTPUT, "ib_send_lat")[4:9] == [11.2, 12.3, 0.55, 15.0, 33.0]


def test_perftest_without_a_result_shows_what_it_said() -> None:
    with pytest.raises(CommandError, match="Couldn't connect"):
        parse_result("Couldn't connect to 127.0.0.1:18515\n", "ib_write_bw")
