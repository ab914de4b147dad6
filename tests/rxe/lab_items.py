"""Runs tests inside the soft-RoCE lab and reports each as an item of the pytest on the host.

At the first item labs start, one for each processor up to two, and each runs one pytest for its share of
the items that were selected: a guest has one CPU, so two are done in half the time. They write each outcome
to a file as they go (--outcomes); each item on the host waits for its own line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lanes import lane_missing
from tests.launch import ROOT

# Seconds: the whole lab run, and one item's wait for it. Each test inside has a limit of its own.
LIMIT = 3000
LABS = min(2, os.cpu_count() or 1)
# The guest has one CPU, which the tests' processes share.
GUEST_ENVIRONMENT = {"RDMATX_TEST_TIME_SCALE": "3"}
INNER = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--provider=system"]


class LabModule(pytest.Module):
    """Collects what a pytest inside the lab would collect."""

    def collect(self) -> Iterator[LabItem]:
        folders = [folder for folder in self.obj.FOLDERS if (ROOT / folder).is_dir()]
        done = subprocess.run(
            [*INNER, "--collect-only", *folders],
            cwd=ROOT,
            env={**os.environ, "RDMATX_LAB": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        ids = [line for line in done.stdout.splitlines() if "::" in line]
        if done.returncode != 0 or not ids:
            raise self.CollectError(
                f"the lab's tests cannot be collected:\n{done.stdout}\n{done.stderr}"
            )
        for inner in ids:
            item = LabItem.from_parent(self, name=inner)
            item.add_marker(pytest.mark.rxe)
            item.add_marker(pytest.mark.timeout(LIMIT))
            yield item


class LabFailure(Exception):
    """A test failed inside the lab; the message is its report there."""


class LabItem(pytest.Item):
    """One test that runs in the lab; its name is its id there."""

    def runtest(self) -> None:
        outcome = _run_of(self.session).outcome(self.name)
        if outcome["outcome"] == "skipped":
            pytest.skip(outcome["text"])
        if outcome["outcome"] == "failed":
            raise LabFailure(outcome["text"])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, LabFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return ROOT / self.name.partition("::")[0], None, f"in the lab: {self.name}"


class LabRun:
    """The labs of a test session: started when the first outcome is asked for, ended with the session."""

    def __init__(self, ids: list[str]) -> None:
        self._missing = _what_the_lab_lacks()
        self._guests: list[LabGuest] = []
        self._guest_of: dict[str, LabGuest] = {}
        if self._missing:
            return
        for number, share in enumerate(shares(ids, LABS)):
            guest = LabGuest(f"{os.getpid()}-{number}", share)
            self._guests.append(guest)
            self._guest_of.update(dict.fromkeys(share, guest))

    def outcome(self, inner: str) -> dict[str, Any]:
        """Waits until that test is through in its lab."""
        if self._missing:
            lane_missing("rxe", self._missing)
        return self._guest_of[inner].outcome(inner)

    def close(self) -> None:
        for guest in self._guests:
            guest.close()


def shares(ids: list[str], count: int) -> list[list[str]]:
    """Splits the tests among guests, whole files, so that each has about as many; none is empty."""
    files: dict[str, list[str]] = {}
    for inner in ids:
        files.setdefault(inner.partition("::")[0], []).append(inner)
    parts: list[list[str]] = [[] for _ in range(count)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(parts, key=len).extend(tests)
    return [part for part in parts if part]


class LabGuest:
    """One lab and the pytest in it."""

    def __init__(self, name: str, ids: list[str]) -> None:
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._read = 0
        # Inside the working folder: the lab's guest can write nowhere else.
        self._folder = ROOT / "build" / f"lab-{name}"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "ids").write_text("\n".join(ids) + "\n")
        command = [
            *(sys.executable, "-m", "rdmatx.lab", "run", "--timeout", str(LIMIT), "--"),
            *("env", *(f"{name}={value}" for name, value in GUEST_ENVIRONMENT.items())),
            *INNER,
            *("--outcomes", str(self._folder / "outcomes"), f"@{self._folder / 'ids'}"),
        ]
        with open(self._folder / "output", "wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def outcome(self, inner: str) -> dict[str, Any]:
        while inner not in self._outcomes:
            ended = self._process.poll() is not None
            self._take_new_outcomes()
            if ended and inner not in self._outcomes:
                raise LabFailure(
                    f"the lab ended with status {self._process.returncode} before this test was through. "
                    f"Its last output:\n{self._tail()}"
                )
            time.sleep(0.02)
        return self._outcomes[inner]

    def _take_new_outcomes(self) -> None:
        path = self._folder / "outcomes"
        if not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the guest is writing it
                self._read += len(line)
                entry = json.loads(line)
                self._outcomes[entry["id"]] = entry

    def _tail(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-8000:]

    def close(self) -> None:
        if self._process.poll() is None:
            # All outcomes are here, or the session was interrupted: it has nothing left to tell.
            try:
                self._process.wait(30 if not _interrupted() else 0.1)
            except subprocess.TimeoutExpired:
                self._process.terminate()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _interrupted() -> bool:
    return isinstance(sys.exc_info()[1], KeyboardInterrupt)


def _what_the_lab_lacks() -> str:
    """Why the lab cannot run here, with the remedy; empty where it can."""
    from rdmatx import lab

    status = lab.status()
    if status.ready:
        return ""
    return "; ".join(
        f"{problem} (remedy: {remedy})"
        for problem, remedy in zip(status.problems, status.remedies, strict=True)
    )


def _run_of(session: pytest.Session) -> LabRun:
    run = session.stash.get(_RUN, None)
    if run is None:
        run = LabRun([item.name for item in session.items if isinstance(item, LabItem)])
        session.stash[_RUN] = run
        session.config.add_cleanup(run.close)
    return run


_RUN = pytest.StashKey[LabRun]()
