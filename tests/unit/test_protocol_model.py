"""The model of the messaging protocol (docs/protocol-model.md): every state of every configuration is sound,
and protocols that are wrong in one place are found out. `make model` visits larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import lane_missing
from tests.launch import TIME_SCALE
from tests.model.checker import check, missing_tools
from tests.model.configurations import MISTAKES, QUICK, Configuration, Mistake

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
LIMIT = 280.0 * TIME_SCALE  # some seconds each, on a machine with a processor to spare


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    missing = missing_tools()
    if missing:
        lane_missing("model", missing)


@pytest.mark.parametrize("configuration", QUICK, ids=lambda configuration: configuration.name)
def test_protocol_holds(configuration: Configuration, tmp_path: Path) -> None:
    outcome = check(configuration.defines, tmp_path, cycles=configuration.cycles, timeout=LIMIT)
    assert outcome.found is None
    assert outcome.complete
    assert outcome.states >= configuration.least_states


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_is_found(mistake: Mistake, tmp_path: Path) -> None:
    outcome = check({**mistake.defines, **mistake.switches}, tmp_path, timeout=LIMIT)
    assert outcome.found == mistake.found
