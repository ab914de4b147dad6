"""Transfers of ours between two hosts of the lab over soft-RoCE, where packets, a host or a link are lost.

What runs on the hosts is in lab_programs.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.launch import TIME_SCALE
from tests.rxe import lab_programs
from tests.rxe.lab_command import require_lab, run_lab
from tests.rxe.lab_hosts import HostFailure, run_on_hosts

pytestmark = pytest.mark.rxe

require_lab()


def test_functions_run_on_both_hosts() -> None:
    first, second = run_on_hosts(lab_programs.say_hello, "hello")
    assert first.value == second.value == ["10.0.0.1", "10.0.0.2"]
    assert second.reports == ["hello from 1"]


def test_a_function_that_raises_fails_the_test_with_its_words() -> None:
    with pytest.raises(HostFailure, match=r"(?s)host 1 ended with status 1\n.*this is not host 0"):
        run_on_hosts(lab_programs.fail_on_one)


SIZES = [0, 1, 8, 4096, 65536, 100_001, 1 << 20, (3 << 20) + 5]


def test_messages_between_hosts() -> None:
    for outcome in run_on_hosts(lab_programs.send_and_check, SIZES):
        assert outcome.value["out_of_seq_request"] == 0
        assert outcome.value["sent_pkts"] > sum(SIZES) // 4096


def test_messages_arrive_whole_where_packets_are_lost() -> None:
    outcomes = run_on_hosts(lab_programs.send_and_check, SIZES, netem="loss 1%")
    for name in ("out_of_seq_request", "completer_retry_err"):
        assert sum(outcome.value[name] for outcome in outcomes) > 0, name


@pytest.mark.skipif(os.geteuid() != 0, reason="powering off takes root inside")
@pytest.mark.parametrize("survivor_sends", [True, False], ids=["sender", "receiver"])
def test_a_host_powered_off_in_the_middle_is_reported(survivor_sends: bool) -> None:
    started = time.monotonic()
    survivor, gone = run_on_hosts(
        lab_programs.lose_the_peer, survivor_sends, timeout=50.0, linger=50.0
    )
    assert gone.gone
    assert survivor.status == 0
    [report] = survivor.reports
    assert report["messages"] >= 9
    assert "10.0.0.2" in report["error"]
    assert time.monotonic() - started < lab_programs.NOTICED + 20 * TIME_SCALE


SEND_FILE = """
if [ "$RDMATX_LAB_HOST" = 1 ]; then
  exec {python} -m rdmatx recv --listen 10.0.0.2:7000 --out out --once --provider system --json
fi
until (: </dev/tcp/10.0.0.2/7000) 2>/dev/null; do sleep 0.1; done
{python} -m rdmatx send data 10.0.0.2:7000 --provider system --json
"""


def test_files_between_hosts_with_loss(folder: Path) -> None:
    data = lab_programs.content(7, 3_000_000)
    (folder / "data").write_bytes(data)
    (folder / "script").write_text(SEND_FILE.format(python=sys.executable))
    options = ("--hosts", "2", "--netem", "loss 1%", "--json")
    done = run_lab(folder, "bash", "script", options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    said = [json.loads(event["text"]) for event in events if event.get("stream") == "stdout"]
    results = {entry["command"]: entry for entry in said if "command" in entry}
    digest = hashlib.sha256(data).hexdigest()
    for command in ("send", "recv"):
        assert results[command]["verified"]
        assert results[command]["device"] == "rxe0"
        assert results[command]["files"][0]["sha256"] == digest
    assert (folder / "out" / "data").read_bytes() == data


@pytest.mark.skipif(os.geteuid() != 0, reason="setting a link down takes root inside")
@pytest.mark.parametrize("hosts", [1, 2])
def test_devices_tells_of_a_rail_that_is_down(hosts: int) -> None:
    for outcome in run_on_hosts(lab_programs.states_of_rails, 1, hosts=hosts, rails=2):
        assert outcome.reports == [
            {"rxe0": ["ACTIVE"], "rxe1": ["ACTIVE"]},
            {"rxe0": ["ACTIVE"], "rxe1": ["DOWN"]},
            {"rxe0": ["ACTIVE"], "rxe1": ["ACTIVE"]},
        ]
