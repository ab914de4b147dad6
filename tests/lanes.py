"""Skips that never hide a promise.

A lane is something a machine may lack: `soft`, `rxe`, `torch`, `gpu`, `cpp`, `model`. A test of a lane says
so with the marker of that name, or skips through `lane_missing`. Where RDMATX_TEST_REQUIRE names the lane,
such a skip fails.
"""

from __future__ import annotations

import os
import re
from typing import NoReturn

import pytest

# The one kind of skip that is always allowed: the device was asked and said that it lacks the feature.
UNSUPPORTED = "the device reports that it does not support"
_LANE_REASON = re.compile(r"lane '(\w+)'|could not import '(\w+)")


def promised() -> frozenset[str]:
    names = os.environ.get("RDMATX_TEST_REQUIRE", "")
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def required_lane(markers: set[str], reason: str) -> str | None:
    """The promised lane that a skip with this reason belongs to, or None."""
    named = _LANE_REASON.search(reason)
    lanes = markers | ({named.group(1) or named.group(2)} if named else set())
    return min(lanes & promised(), default=None)


def lane_missing(lane: str, reason: str) -> NoReturn:
    """Skips the test, or the module at import, because this machine lacks the lane."""
    pytest.skip(f"lane '{lane}': {reason}", allow_module_level=True)


def unsupported(device: str, feature: str) -> NoReturn:
    """Skips because the device itself says no; the only skip the conformance suite may have."""
    pytest.skip(f"{UNSUPPORTED} {feature} ({device})")
