"""A network that is gone for a while, or for good, between two hosts of the lab.

What runs on the hosts is in lab_fault_programs.py.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.launch import TIME_SCALE
from tests.rxe import lab_fault_programs
from tests.rxe.lab_command import require_lab
from tests.rxe.lab_hosts import run_on_hosts

pytestmark = [
    pytest.mark.rxe,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="taking the network away takes root inside"),
]

require_lab()

# Seconds in which both sides must know that the other one is gone.
KNOWN_WITHIN = 15.0 * TIME_SCALE


def test_an_outage_shorter_than_the_retries() -> None:
    """Everything is lost for a second: all arrives, and the connection never ends."""
    outcomes = run_on_hosts(lab_fault_programs.survive_an_outage, timeout=60.0)
    for outcome in outcomes:
        assert [rail["alive"] for rail in outcome.value["rails"]] == [True]
    retries = [outcome.value["counters"]["completer_retry_err"] for outcome in outcomes]
    assert sum(retries) > 0


def test_a_link_that_is_down_for_a_second() -> None:
    """A connection with nothing under way does not mind."""
    outcomes = run_on_hosts(lab_fault_programs.idle_without_a_link, timeout=60.0)
    assert [outcome.value.partition(":")[0] for outcome in outcomes] == ["10.0.0.2", "10.0.0.1"]


@pytest.mark.parametrize("role", ["idle", "sending"])
@pytest.mark.parametrize("kind", lab_fault_programs.OUTAGES)
def test_an_outage_longer_than_the_retries(kind: str, role: str) -> None:
    """Both sides are told, with the cause; when the network is back, a new connection works."""
    outcomes = run_on_hosts(lab_fault_programs.be_cut_off, kind, role, timeout=90.0, linger=60.0)
    for outcome in outcomes:
        [report] = outcome.reports
        assert report["seconds"] < KNOWN_WITHIN
        assert f"10.0.0.{2 - outcome.index}" in report["words"]
        cause = "cannot be reached|retr|Port 1 of rxe0 is DOWN: its link is down"
        assert re.search(cause, report["words"]), report["words"]
