"""perftest (``ib_write_bw`` and its like): the verbs benchmark everyone knows, on the same device."""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.sample import Sample
from rdmatx.cli.errors import CommandError

_SECONDS = 120.0
# perftest refuses fewer than 5, and of few it cannot tell the time.
_FEWEST_ITERATIONS = 100
# On a busy machine it often cannot calibrate its clock, and then prints no speed.
_ATTEMPTS = 25


class Perftest:
    """Runs a server and a client of perftest for each round. They bring memory of their own."""

    def __init__(self, case: Case, device: str) -> None:
        """Raises ``CommandError`` where perftest is missing or measures something else."""
        if case.mode == "lat" and case.op == "write":
            raise CommandError(
                "ib_write_lat measures half a round trip between two processes that poll their "
                "memory, and --op write --mode lat the time until a write is complete: they "
                "cannot be compared. Compare --op send, or --op read, with perftest"
            )
        self._program = f"ib_{case.op}_{case.mode}"
        self._device = device
        self._case = case
        self._reported: dict[str, float] = {}
        if shutil.which(self._program) is None:
            raise CommandError(
                f"{self._program} is not installed: apt-get install perftest "
                "(Fedora, RHEL: dnf install perftest)"
            )
        if not Path("/sys/class/infiniband", device).exists():
            raise CommandError(
                f"perftest needs an RDMA device of the system, and {device} is none: use "
                "--provider system on a machine that has one, or `rdmatx lab run -- rdmatx bench …`"
            )
        if "cpu MHz" not in Path("/proc/cpuinfo").read_text():
            raise CommandError(
                "perftest prints zeros here, because /proc/cpuinfo has no line `cpu MHz`: mount "
                "a copy that has one over it (`rdmatx lab run` does)"
            )

    def arrange(self, case: Case) -> None:
        """Takes the next size."""
        self._case = case

    def round(self, iterations: int) -> Sample:
        """One run of both processes; the time is perftest's own, without its set-up."""
        count = max(iterations, _FEWEST_ITERATIONS)
        for _ in range(_ATTEMPTS):
            sample = self._attempt(count)
            if sample is not None:
                return sample
        raise CommandError(
            f"{self._program} reported no time in {_ATTEMPTS} attempts: it could not calibrate "
            "its clock, which happens when the machine is busy"
        )

    def _attempt(self, count: int) -> Sample | None:
        """One run; ``None`` where perftest failed to calibrate its clock and reports nonsense."""
        begin = os.times()
        output = self._run_pair(count)
        spent = os.times()
        cpu = (
            spent.children_user + spent.children_system
            - begin.children_user - begin.children_system
        )  # fmt: skip
        values = parse_result(output, self._program)
        if not all(math.isfinite(value) for value in values[:4]) or values[3] <= 0:
            return None
        if self._case.mode == "lat":
            # bytes, iterations, min, max, typical, average, deviation, p99, p99.9
            typical, p99, p999 = values[4], values[7], values[8]
            trips = 2 if self._case.op == "send" else 1
            latencies = {"p50": typical, "p99": p99, "p999": p999}
            return Sample(count, values[5] * trips * count / 1e6, cpu, None, latencies)
        # bytes, iterations, peak, average (Gb/s), messages a second
        return Sample(count, self._case.bytes * count * 8 / values[3] / 1e9, cpu, None)

    def _command(self, iterations: int, port: int) -> list[str]:
        command = [self._program, "-d", self._device, "-s", str(self._case.bytes)]
        command += ["-n", str(iterations), "-p", str(port), "-F"]
        if self._case.mode == "bw":
            command.append("--report_gbits")
        return command

    def _run_pair(self, iterations: int) -> str:
        port = _free_port()
        command = self._command(iterations, port)
        server = _start(command)
        try:
            _await_listener(server, port)
            output = _finish(_start([*command, "127.0.0.1"]), self._program)
            server.communicate(timeout=_SECONDS)
            return output
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{self._program} did not end within {_SECONDS:.0f} s") from error
        finally:
            _end(server)


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process: subprocess.Popen[str], program: str) -> str:
    """Waits for a process and gives what it printed."""
    try:
        output = process.communicate(timeout=_SECONDS)[0]
    finally:
        _end(process)
    if process.returncode:
        raise CommandError(
            f"{program} failed (exit status {process.returncode}):\n{output.strip()}"
        )
    return output


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()


def parse_result(output: str, program: str) -> list[float]:
    """The numbers of the line under the heading; raises where there is none."""
    for line in reversed(output.splitlines()):
        words = line.split()
        if len(words) >= 4 and all(re.fullmatch(r"[\d.]+|inf|-?nan", word) for word in words):
            return [float(word) for word in words]
    raise CommandError(f"{program} printed no result:\n{output.strip()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_listener(server: subprocess.Popen[str], port: int) -> None:
    """Waits until somebody listens on ``port``: a connection tried too early ends the client."""
    wanted = f":{port:04X}"
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            output = server.communicate()[0]
            raise CommandError(f"the server of perftest ended early:\n{output.strip()}")
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                # State 0A is LISTEN.
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return
        time.sleep(0.01)
    raise CommandError("the server of perftest did not listen in time")
