"""The errors: what they also are, what they carry, and that they can be pickled."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest

from rdmatx import errors

CARRIES: dict[type[errors.Error], dict[str, object]] = {
    errors.Error: {},
    errors.UnavailableError: {},
    errors.UsageError: {},
    errors.SizeMismatchError: {"needed_bytes": 1 << 40, "available_bytes": 7},
    errors.ClosedError: {},
    errors.VerbsError: {"call": "ibv_reg_mr", "errno": errno.ENOMEM},
    errors.CudaError: {"call": "cuInit", "code": 100},
    errors.CompletionError: {"status": 12, "vendor_error": 3, "peer": "p", "operation": "send"},
    errors.PeerLostError: {"peer": "127.0.0.1:1"},
    errors.AuthenticationError: {"peer": "127.0.0.1:2"},
    errors.TimeoutError: {"peer": "p", "operation": "recv", "seconds": 1.5},
}

ALSO = {
    errors.UnavailableError: RuntimeError,
    errors.UsageError: ValueError,
    errors.SizeMismatchError: ValueError,
    errors.ClosedError: RuntimeError,
    errors.VerbsError: OSError,
    errors.CudaError: RuntimeError,
    errors.PeerLostError: ConnectionError,
    errors.AuthenticationError: ConnectionError,
    errors.TimeoutError: TimeoutError,
}


def test_every_class_is_covered() -> None:
    assert {kind.__name__ for kind in CARRIES} == set(errors.__all__)


@pytest.mark.parametrize(("kind", "also"), ALSO.items(), ids=lambda kind: kind.__name__)
def test_isinstance_both(kind: type[errors.Error], also: type[Exception]) -> None:
    assert issubclass(kind, errors.Error)
    assert issubclass(kind, also)


@pytest.mark.parametrize("kind", CARRIES, ids=lambda kind: kind.__name__)
def test_message_and_attributes(kind: type[errors.Error]) -> None:
    error = kind("what was wrong; what to do", **CARRIES[kind])
    assert str(error) == "what was wrong; what to do"
    assert {name: getattr(error, name) for name in CARRIES[kind]} == CARRIES[kind]


@pytest.mark.parametrize("kind", CARRIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled(kind: type[errors.Error], protocol: int) -> None:
    error = kind("what was wrong", **CARRIES[kind])
    error.add_note("rank 3") if hasattr(error, "add_note") else None
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert {name: getattr(twin, name) for name in CARRIES[kind]} == CARRIES[kind]
        assert getattr(twin, "__notes__", None) == getattr(error, "__notes__", None)


def test_without_arguments() -> None:
    for kind in CARRIES:
        assert str(kind()) == ""


def test_from_the_core() -> None:
    """The extension raises these very classes, with what the C++ errors carry."""
    from rdmatx import _C, verbs

    with pytest.raises(errors.UsageError, match="provider"):
        _C.list_devices("nonsense")
    with pytest.raises(errors.UnavailableError, match="nothing0"):
        verbs.Device("nothing0", provider="soft")
    with pytest.raises(errors.VerbsError) as caught:
        _C.testing.faulty_device("soft", 1, ["open_device"])
    assert (caught.value.call, caught.value.errno) == ("ibv_open_device", errno.ENOMEM)
    with verbs.Device(provider="soft") as device, pytest.raises(errors.TimeoutError) as late:
        device.next_async_event(timeout=0.01)
    assert (late.value.operation, late.value.seconds) == ("next_async_event", 0.01)
    with pytest.raises(errors.ClosedError, match="Device is closed"):
        device.query_port()
    device.close()
