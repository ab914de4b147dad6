"""Runs a function of a test module on the hosts of a lab, and gathers what each has to say.

    def greet(host: LabHost, word: str) -> str:         # at module level: the hosts import it by name
        return f"{word} from {host.index}, and {host.exchange(host.address)}"

    assert run_on_hosts(greet, "hello")[1].value == "hello from 1, and ['10.0.0.1', '10.0.0.2']"

Arguments, what it returns, what it reports and what it exchanges travel as JSON. A function that raises
fails the test with its traceback, behind what the hosts printed. A host may power itself off; then it has
no value, but its reports until then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.launch import ROOT, TIME_SCALE

# Begins a line of a host that is for us; what a test prints has no such character.
MARK = "\x1e"
PORT = 7470  # of LabHost.exchange


class HostFailure(AssertionError):
    """A host raised, or ended without a word; the message has its traceback and what was printed."""


@dataclass
class HostOutcome:
    """What became of one host."""

    index: int
    status: int = -1
    gone: bool = False
    """Whether it was powered off."""
    value: Any = None
    reports: list[Any] = field(default_factory=list)
    error: str = ""
    printed: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        if not line.startswith(MARK):
            self.printed.append(line)
            return
        kind, payload = json.loads(line[1:])
        if kind == "report":
            self.reports.append(payload)
        else:
            setattr(self, kind, payload)


class LabHost:
    """Inside: where this is, and how to reach the others."""

    def __init__(self) -> None:
        self.index = int(os.environ["RDMATX_LAB_HOST"])
        self.peers = os.environ["RDMATX_LAB_PEERS"].split(",")
        self.peers6 = os.environ["RDMATX_LAB_PEERS6"].split(",")
        self.devices = os.environ["RDMATX_LAB_DEVICES"].split(",")

    @property
    def address(self) -> str:
        """This host's IPv4 address."""
        return self.peers[self.index]

    def report(self, value: Any) -> None:
        """Sends a value to the test, also where this host will not live to return one."""
        _say("report", value)

    def exchange(self, value: Any, timeout: float = 20.0) -> list[Any]:
        """Gives every host the value of each, by index; they wait for each other."""
        timeout *= TIME_SCALE
        if self.index == 0:
            return self._gather(value, timeout)
        deadline = time.monotonic() + timeout
        while True:
            try:
                link = socket.create_connection((self.peers[0], PORT), timeout)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        with link, link.makefile("rw") as stream:
            stream.write(json.dumps([self.index, value]) + "\n")
            stream.flush()
            answer: list[Any] = json.loads(stream.readline())
            return answer

    def _gather(self, value: Any, timeout: float) -> list[Any]:
        values = {0: value}
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.create_server((self.address, PORT)))
            server.settimeout(timeout)
            streams = []
            while len(values) < len(self.peers):
                link = stack.enter_context(server.accept()[0])
                link.settimeout(timeout)
                stream = stack.enter_context(link.makefile("rw"))
                index, theirs = json.loads(stream.readline())
                values[index] = theirs
                streams.append(stream)
            answer = [values[index] for index in range(len(self.peers))]
            for stream in streams:
                stream.write(json.dumps(answer) + "\n")
                stream.flush()
        return answer

    def counters(self, device: str = "rxe0") -> dict[str, int]:
        """The device's own counters of port 1."""
        folder = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
        found = {}
        for name in os.listdir(folder):
            with open(f"{folder}/{name}") as file:
                found[name] = int(file.read())
        return found

    def command(self, *words: str) -> str:
        """Runs a command such as `ip link set vec0 down` and returns what it prints."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"`{' '.join(words)}`: {done.stderr}"
        return done.stdout

    def power_off(self) -> NoReturn:
        """Ends this host's kernel without a word to the other."""
        from rdmatx.lab.power import power_off

        sys.stdout.flush()
        time.sleep(0.2)  # what was said travels outside before the kernel ends
        power_off()
        raise AssertionError("the host is still on")


def run_on_hosts(
    function: Callable[..., Any],
    *arguments: Any,
    hosts: int = 2,
    rails: int | None = None,
    netem: str | None = None,
    timeout: float = 40.0,
    linger: float = 10.0,
    mem: str = "1G",
) -> list[HostOutcome]:
    """Runs `function(host, *arguments)` on every host, and returns what became of each.

    When one has raised or is off, the other is ended `linger` seconds later. Raises HostFailure where one
    raised, or ended in another way than by powering itself off.
    """
    limit = timeout * TIME_SCALE
    options = ["--hosts", str(hosts), "--mem", mem, "--timeout", str(limit)]
    options += ["--linger", str(linger * TIME_SCALE)]
    options += [] if rails is None else ["--rails", str(rails)]
    options += [] if netem is None else ["--netem", netem]
    inside = [sys.executable, "-m", "tests.rxe.lab_hosts"]
    inside += [function.__module__, function.__qualname__, json.dumps(arguments)]
    done = subprocess.run(
        [sys.executable, "-m", "rdmatx.lab", "run", "--json", *options, "--", *inside],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit + 30,
        check=False,
    )
    outcomes = [HostOutcome(index) for index in range(hosts)]
    for line in done.stdout.splitlines():
        event = json.loads(line)
        if event["event"] == "output":
            outcomes[event["host"]].take(event["text"])
        elif event["event"] == "exit":
            outcomes[event["host"]].status = event["status"]
            outcomes[event["host"]].gone = event["gone"]
    for outcome in outcomes:
        print("".join(f"[host {outcome.index}] {line}\n" for line in outcome.printed), end="")
    failed = [outcome for outcome in outcomes if outcome.status != 0 and not outcome.gone]
    if failed or done.returncode == 124:
        words = [f"host {o.index} ended with status {o.status}\n{o.error}" for o in failed]
        raise HostFailure("\n".join([*words, done.stderr]))
    return outcomes


def _say(kind: str, value: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps([kind, value])}\n")
    sys.stdout.flush()


def _main(module: str, name: str, arguments: str) -> int:
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        from tests import leaks

        before = leaks.snapshot()
        value = function(LabHost(), *json.loads(arguments))
        leaks.check(before)
        _say("value", value)
        return 0
    except BaseException:
        _say("error", traceback.format_exc())
        return 1


if __name__ == "__main__":
    # By its importable name, so that LabHost is the same class that the test module sees.
    from tests.rxe.lab_hosts import _main as _run

    sys.exit(_run(*sys.argv[1:]))
