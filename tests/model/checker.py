"""Runs spin on the model of the messaging protocol and reads what it found."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "messaging.pml"
COMPILER = shlex.split(os.environ.get("CC") or "cc")
PREPROCESS = shlex.join([*COMPILER, "-E", "-x", "c"])
MEMORY_MIB = 1024
MOST_STEPS = 20_000  # of one execution; the longest of any configuration has a few hundred

DEADLOCK = "deadlock"
# What the model's assertions are about, by a word that occurs in each as the checker prints it.
ASSERTIONS = {
    "carried_data": "credit is lost or made up",
    "q_len(wire": "a message finds no receive slot",
    "wire_credits": "too many credit messages are under way",
    "newest": "messages of a tag are matched out of order",
    "asked": "an answer to an operation that does not wait for it",
    "writing": "a finish to an operation that does not wait for it",
    "written": "a finish comes before the bytes",
    "last_notification": "notifications come out of order",
}


class CheckerError(Exception):
    """The checker itself did not run to its end; the text is what it said."""


@dataclass(frozen=True)
class Outcome:
    """What a search found. `found` is None, "deadlock" or the broken assertion in words; `complete` says
    that every state was visited, which is not so after an error or where a bound was hit."""

    found: str | None
    states: int
    transitions: int
    depth: int
    complete: bool
    seconds: float


def missing_tools() -> str | None:
    """What this machine lacks for a check, in words; None where it has all."""
    spin = shutil.which("spin")
    if spin is None:
        return "spin is not installed (apt-get install spin)"
    version = subprocess.run([spin, "-V"], capture_output=True, text=True, timeout=30)
    if "Spin Version" not in version.stdout + version.stderr:
        return f"{spin} is another program than the model checker spin"
    if shutil.which(COMPILER[0]) is None:
        return f"there is no C compiler ({COMPILER[0]})"
    return None


def _run(command: list[str], folder: Path, timeout: float) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CheckerError(f"{command[0]} was not done within {timeout:g} s") from None
    if done.returncode != 0:
        raise CheckerError(
            f"{command[0]} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise CheckerError(f"the checker does not say {pattern!r}:\n{text}")
    return int(float(found.group(1)))


def _what(text: str) -> str | None:
    if "invalid end state" in re.sub(r"invalid end states\s", "", text):
        return DEADLOCK
    broken = re.search(r"assertion violated (.*)", text)
    if broken is None:
        return None
    names = [name for word, name in ASSERTIONS.items() if word in broken.group(1)]
    return names[0] if names else f"not all is done at the end: {broken.group(1)}"


def check(
    defines: Mapping[str, int],
    folder: Path,
    *,
    cycles: bool = False,
    optimise: bool = False,
    timeout: float = 120.0,
) -> Outcome:
    """Visits every state of the model with these parameters, or all until the first error.

    `folder` gets the generated program and, after an error, its trail. With `cycles`, an execution that
    goes on for ever is an error too. `optimise` pays for searches of more than some 100,000 states.
    Raises CheckerError where spin, the compiler or the search does not end well within `timeout`.
    """
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    switches = [f"-D{name}={value}" for name, value in defines.items()]
    _run(["spin", f"-P{PREPROCESS}", *switches, "-a", str(MODEL)], folder, timeout)
    # Exact and whole: states are compressed without loss, and no interleaving is left out.
    options = ["-DCOLLAPSE", "-DNOREDUCE", "-DNOFAIR", f"-DMEMLIM={MEMORY_MIB}"]
    options.append("-DNP" if cycles else "-DSAFETY")
    options.append("-O1" if optimise else "-O0")
    _run([*COMPILER, "-w", *options, "-o", "pan", "pan.c"], folder, timeout)
    search = ["./pan", f"-m{MOST_STEPS}", "-w22", "-l" if cycles else "-n"]
    text = _run(search, folder, timeout)
    errors = _number(r"errors: (\d+)", text)
    found = _what(text)
    if errors > 0 and found is None:
        found = "an execution that never ends" if cycles else f"something else:\n{text}"
    cut = any(
        sign in text
        for sign in ("max search depth too small", "Search not completed", "out of memory")
    )
    return Outcome(
        found=found,
        states=_number(r"([\d.e+]+) states, stored", text),
        transitions=_number(r"([\d.e+]+) transitions", text),
        depth=_number(r"depth reached (\d+)", text),
        complete=errors == 0 and not cut,
        seconds=time.monotonic() - started,
    )


def trace(defines: Mapping[str, int], folder: Path) -> str:
    """The steps to the error that check() found and left in `folder`, and the state it leads to."""
    for source in MODEL.parent.glob("*.pml"):
        shutil.copy(source, folder)  # spin looks for the trail beside the model
    switches = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["spin", f"-P{PREPROCESS}", *switches, "-t", "-T", MODEL.name]
    lines = _run(command, folder, 60.0).splitlines()
    return "\n".join(line.strip() for line in lines if not line.strip().endswith(" = 0"))
