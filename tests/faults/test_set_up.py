"""Failing call n leaves nothing open: every set-up path, with every one of its calls failing in turn.

The device's table of verbs is a copy in which the n-th call of a verb that sets something up fails with
ENOMEM. Whatever n is: the error names the verb, nothing is left open, and the same path works right
afterwards.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

import pytest

from rdmatx import _C
from rdmatx.errors import VerbsError
from rdmatx.verbs import Device
from tests import leaks
from tests.conformance.ends import End, all_succeeded, connect, usable_gid_index
from tests.lanes import lane_missing
from tests.launch import TIME_SCALE
from tests.unit.test_cpp import PROGRAMS

Path = Callable[[Device, int], None]
# More calls than any path makes: a plan that never runs out is a mistake of the test.
MOST_CALLS = 200


def open_device(device: Device, _: int) -> None:
    device.query_port(1)


def queue_pair(device: Device, _: int) -> None:
    """Everything a queue pair needs, not connected."""
    End(device, 0).close()


def queue_pair_with_everything(device: Device, _: int) -> None:
    """A completion channel and a shared receive queue as well."""
    End(device, 0, channel=True, shared_receives=8).close()


def registration(device: Device, _: int) -> None:
    end = End(device, 0)
    try:
        for nbytes in (64, 1 << 16, 1 << 20):
            end.memory(nbytes)
    finally:
        end.close()


def connection(device: Device, index: int) -> None:
    """Two connected queue pairs that have moved something."""
    one = End(device, index)
    try:
        other = End(device, index)
        try:
            connect(one, other)
            source, target = one.memory(b"alive"), other.memory(5)
            one.write(source, target)
            all_succeeded(one.sent())
            assert bytes(target) == b"alive"
        finally:
            other.close()
    finally:
        one.close()


PATHS = [open_device, queue_pair, queue_pair_with_everything, registration, connection]


@pytest.fixture
def gid_index(provider: str, device_name: str | None) -> int:
    """Looked up beforehand: a device with a thousand GIDs has a thousand calls here."""
    with Device(device_name, provider=provider) as device:
        return usable_gid_index(device)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_failing_call_leaves_nothing_open(
    provider: str, device_name: str | None, gid_index: int, path: Path
) -> None:
    def run(failing: int) -> None:
        faulty = _C.testing.faulty_device(provider, failing, name=device_name or "")
        with faulty as device:
            path(device, gid_index)

    run(0)
    calls = _C.testing.counted_calls(provider)
    assert 0 < calls < MOST_CALLS
    before = leaks.snapshot()
    for failing in range(1, calls + 1):
        with pytest.raises(VerbsError) as caught:
            run(failing)
        assert caught.value.errno == errno.ENOMEM, f"call {failing}: {caught.value}"
        assert str(caught.value).startswith("ibv_"), f"call {failing}: {caught.value}"
        del caught
        leaks.check(before)
    run(0)


@pytest.mark.parametrize(
    "verb",
    ["open_device", "alloc_pd", "create_cq", "create_qp", "reg_mr", "modify_qp", "query_gid_ex"],
)
def test_verb_that_fails_is_named(
    provider: str, device_name: str | None, gid_index: int, verb: str
) -> None:
    """The first call of one verb fails: the error says which verb it was."""
    expected = pytest.raises(VerbsError, match=f"ibv_{verb.removesuffix('_ex')}")
    with expected, _C.testing.faulty_device(provider, 1, [verb], device_name or "") as device:
        connection(device, gid_index)


@pytest.mark.cpp
@pytest.mark.timeout(300)
def test_context_and_connection(provider: str) -> None:
    """The same for a Context, its listener, a connection, a region and a message (tests/cpp/faults)."""
    command = PROGRAMS.get("context_faults")
    if command is None:
        lane_missing("cpp", "the C++ tests are not built: make test-cpp")
    done = subprocess.run(
        [command[0], provider], capture_output=True, text=True, timeout=90 * TIME_SCALE
    )
    assert done.returncode == 0, done.stdout + done.stderr
