"""What every test gets: a provider, a time limit, and a look for anything it left open.

    pytest                                        on the software HCA, on any machine
    pytest --provider=system tests/conformance    the same test ids on a verbs device (the lab's, or a host's)

The conformance suite runs twice on the software HCA: as it is, and over TCP (test ids end in [tcp]).

RDMATX_TEST_REQUIRE=soft,rxe,torch,cpp,model   lanes that must run: a test of one that skips fails instead
RDMATX_TEST_TIME_SCALE=4                       multiplies every time limit (a slow machine, a sanitizer)
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests import launch, leaks
from tests.lanes import UNSUPPORTED, required_lane

DEFAULT_TIMEOUT = 60.0
RUN_OVER_TCP_TOO = ("conformance",)
# A main thread that is stuck in native code never sees the alarm; this much later the process ends itself.
HARD_GRACE = 20.0
_stderr = os.dup(2)  # pytest captures descriptor 2


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdmatx")
    group.addoption(
        "--provider",
        choices=("soft", "system"),
        default="soft",
        help="which verbs the tests run on: the software HCA (default) or the system's devices",
    )
    group.addoption(
        "--device", default=None, help="the device's name, where the provider has more than one"
    )
    group.addoption(
        "--outcomes",
        default=None,
        metavar="FILE",
        help="append each test's outcome to FILE, a JSON object a line",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "timeout(seconds): this test's own time limit, 60 without it"
    )
    config.addinivalue_line("markers", "soft_only: about the software HCA, or too much for a lab")
    config.addinivalue_line("markers", "cpp: needs the C++ tests to be built")
    config.addinivalue_line("markers", "model: needs the model checker spin and a C compiler")
    # A shell starts what runs in its background with Ctrl-C ignored, and programs that are started from here
    # would inherit that: the tests of Ctrl-C send one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported so far lives on: no search for leaks need go through it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    provider = config.getoption("--provider")
    kept, dropped = [], []
    for item in items:
        if "provider" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.soft if provider == "soft" else pytest.mark.rxe)
        wanted = provider == "soft" or _is_about_verbs(item)
        (kept if wanted else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _is_about_verbs(item: pytest.Item) -> bool:
    """Whether a test says anything new on another provider than the software HCA."""
    if item.get_closest_marker("soft_only") is not None:
        return False
    return (
        "provider" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("rxe") is not None
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        lanes = {marker.name for marker in item.iter_markers()}
        _hold_to_promise(report, lanes)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    if report.skipped:
        _hold_to_promise(report, set())
    return report


def _hold_to_promise(report: Any, lanes: set[str]) -> None:
    """Turns a skip into a failure where its lane is promised, unless the device itself lacks the
    feature."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if UNSUPPORTED in reason:
        return
    lane = required_lane(lanes, reason)
    if lane:
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\nRDMATX_TEST_REQUIRE promises the lane '{lane}', so this may not be skipped."
        )


class Outcomes:
    """Writes what became of each test, for a test run around this one (tests/rxe/lab_items.py)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self._parts.setdefault(
            report.nodeid, {"id": report.nodeid, "outcome": "passed", "text": "", "seconds": 0.0}
        )
        entry["seconds"] += report.duration
        if report.failed:
            sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
            entry["outcome"] = "failed"
            entry["text"] += f"{report.when}: {report.longreprtext}{sections}\n"
        elif report.skipped and entry["outcome"] == "passed":
            entry["outcome"] = "skipped"
            entry["text"] = (
                report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
        if report.when == "teardown":
            self._write(self._parts.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(
                {
                    "id": report.nodeid,
                    "outcome": "failed",
                    "text": report.longreprtext,
                    "seconds": 0.0,
                }
            )

    def _write(self, entry: dict[str, Any]) -> None:
        with open(self._path, "a") as out:
            out.write(json.dumps(entry) + "\n")


def pytest_sessionstart(session: pytest.Session) -> None:
    path = session.config.getoption("--outcomes")
    if path:
        session.config.pluginmanager.register(Outcomes(path))


class TestTimeout(Exception):
    """Raised in the main thread by the alarm; carries every stack."""

    __test__ = False


def _alarm(limit: float) -> Any:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        with tempfile.TemporaryFile(mode="w+") as out:
            faulthandler.dump_traceback(out, all_threads=True)
            out.seek(0)
            stacks = out.read()
        raise TestTimeout(
            f"not done within {limit:g} s. The stacks of this process:\n{stacks}"
            f"{launch.stacks_of_all_ranks()}"
        )

    return ring


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Bounds the test with its fixtures: an exception with all stacks, then the end of the process."""
    marker = item.get_closest_marker("timeout")
    limit = (float(marker.args[0]) if marker else DEFAULT_TIMEOUT) * launch.TIME_SCALE
    previous = signal.signal(signal.SIGALRM, _alarm(limit))
    signal.setitimer(signal.ITIMER_REAL, limit)
    faulthandler.dump_traceback_later(limit + HARD_GRACE, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails the test where it leaves an object, thread, descriptor, shared-memory file or process behind.

    First of all fixtures of a test, so last to be torn down: what they hold must be closed by then.
    """
    before = leaks.snapshot()
    yield
    # An exception that is being handled keeps its frames, and those keep what the test had.
    sys.last_value = sys.last_traceback = None
    try:
        leaks.check(before)
    except leaks.LeakError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Doubles the tests that hold a provider to the manual: the software HCA has two ways to a peer."""
    about_verbs = Path(metafunc.definition.path).parent.name in RUN_OVER_TCP_TOO
    on_soft = metafunc.config.getoption("--provider") == "soft"
    if about_verbs and on_soft and "provider" in metafunc.fixturenames:
        wires = [pytest.param(None, id=pytest.HIDDEN_PARAM), pytest.param("tcp", id="tcp")]
        metafunc.parametrize("provider", wires, indirect=True, scope="session")


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest) -> Iterator[str]:
    """The provider of this run, "soft" or "system"."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", None):
            patch.setenv("RDMATX_SOFT_WIRE", request.param)
        yield str(request.config.getoption("--provider"))


@pytest.fixture(scope="session")
def device_name(request: pytest.FixtureRequest) -> str | None:
    """The device named on the command line, or None for the provider's first."""
    name = request.config.getoption("--device")
    return None if name is None else str(name)
