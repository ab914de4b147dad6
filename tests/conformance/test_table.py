"""The table of verbs itself, in C++ (tests/cpp/verbs/table_test.cpp): EBUSY for a parent with children, the
failing request of a list, and failures told in the two ways verbs have. Here, so that it runs on every
provider."""

from __future__ import annotations

import subprocess

import pytest

from tests.lanes import lane_missing
from tests.launch import TIME_SCALE
from tests.unit.test_cpp import PROGRAMS

CASES = [
    "no_entry_is_null",
    "device_list_ends_with_null",
    "domain_with_a_memory_region_is_busy",
    "domain_with_a_queue_pair_is_busy",
    "completion_queue_of_a_queue_pair_is_busy",
    "channel_of_a_completion_queue_is_busy",
    "shared_receive_queue_of_a_queue_pair_is_busy",
    "list_of_receives_tells_which_one_failed",
    "failures_come_with_their_errno",
    "statuses_and_events_have_names",
]


@pytest.mark.cpp
@pytest.mark.parametrize("case", CASES)
def test_table(provider: str, case: str) -> None:
    command = PROGRAMS.get("table")
    if command is None:
        lane_missing("cpp", "the C++ tests are not built: make test-cpp")
    done = subprocess.run(
        [command[0], provider, case], capture_output=True, text=True, timeout=30 * TIME_SCALE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{case} ... ok" in done.stdout, done.stdout
