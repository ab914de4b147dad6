"""Two rails between two hosts of the lab, of which one's link goes down and comes back."""

from __future__ import annotations

import os

import pytest

from tests.rxe.lab_command import require_lab
from tests.rxe.lab_hosts import run_on_hosts
from tests.rxe.lab_rail_programs import NBYTES, send_while_a_link_fails

pytestmark = [
    pytest.mark.rxe,
    pytest.mark.skipif(os.geteuid() != 0, reason="setting links down takes root inside"),
]

require_lab()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_message_survives_the_loss_of_a_rail(failing: int) -> None:
    """Whether messages go over the rail that fails or over the other one."""
    sender, receiver = run_on_hosts(send_while_a_link_fails, failing, rails=2)
    # Both rails carried their share before.
    assert min(sender.value["carried"]) > NBYTES // 10
    assert sender.value["failed"] >= 1
    for outcome in (sender, receiver):
        assert [rail["alive"] for rail in outcome.value["rails"]] == [True, True]
        assert outcome.value["rails"][failing]["recoveries"] >= 1
