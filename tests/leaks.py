"""What a process holds open, and what a test has left of it.

Counted are the objects of rdmatx (its own registry, all providers), threads, file descriptors,
shared-memory files and child processes. `check` gives what is on its way out two seconds, then names each
thing that is left.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# Seconds for threads that were told to stop and descriptors that another thread closes.
SETTLE = 2.0


class LeakError(AssertionError):
    """Something was left open; the message lists it."""


@dataclass(frozen=True)
class Snapshot:
    """What is open at one moment. Every entry is a name a person can read."""

    objects: Counter[str] = field(default_factory=Counter)
    threads: dict[int, str] = field(default_factory=dict)
    descriptors: dict[int, str] = field(default_factory=dict)
    shared_memory: frozenset[str] = frozenset()
    children: dict[int, str] = field(default_factory=dict)


def snapshot() -> Snapshot:
    return Snapshot(_objects(), _threads(), _descriptors(), _shared_memory(), _children())


def check(before: Snapshot, *, settle: float = SETTLE) -> None:
    """Raises LeakError where more is open than in `before`."""
    gc.collect()
    deadline = time.monotonic() + settle
    while left := difference(before, snapshot()):
        if time.monotonic() > deadline:
            raise LeakError("left open:\n" + "\n".join(f"  {line}" for line in left))
        time.sleep(0.02)
        gc.collect()


def difference(before: Snapshot, after: Snapshot) -> list[str]:
    """A line for each thing that is in `after` and not in `before`."""
    lines = []
    for kind, count in sorted((after.objects - before.objects).items()):
        lines.append(f"rdmatx object: {count} {kind}")
    for number, name in sorted(after.threads.items()):
        if number not in before.threads:
            lines.append(f"thread {number}: {name}")
    for number, target in sorted(after.descriptors.items()):
        if before.descriptors.get(number) != target:
            lines.append(f"file descriptor {number}: {target}")
    lines += [
        f"shared memory: /dev/shm/{name}"
        for name in sorted(after.shared_memory - before.shared_memory)
    ]
    for number, name in sorted(after.children.items()):
        if number not in before.children:
            lines.append(f"child process {number}: {name}")
    return lines


def _objects() -> Counter[str]:
    """rdmatx's own count of live objects, by kind; nothing where the extension was never loaded."""
    core = sys.modules.get("rdmatx._C")
    if core is None:
        return Counter()
    core.trim_pools()  # memory that is kept for later buffers is no leak
    live = core.live_objects()
    return Counter(live) if isinstance(live, dict) else Counter({"object": live})


def _threads() -> dict[int, str]:
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[int, str] = {}
    for entry in Path("/proc/self/task").iterdir():
        number = int(entry.name)
        name = _read(entry / "comm")
        # The pools of numeric libraries start at first use and stay; they carry the program's name.
        # Ours have names of their own, so they are seen among them.
        if name and (name.startswith("rdmatx") or number in python or not _has_pools()):
            found[number] = python.get(number) or name
    return found


def _has_pools() -> bool:
    return "torch" in sys.modules or "numpy" in sys.modules


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed the folder
        found[int(name)] = target
    return found


def _shared_memory() -> frozenset[str]:
    # Names of ours only, and of this process only: other test runs may share the machine.
    try:
        names = os.listdir("/dev/shm")
    except FileNotFoundError:
        return frozenset()
    mine = re.compile(rf"(^|\D){os.getpid()}(\D|$)")
    return frozenset(name for name in names if "rdmatx" in name and mine.search(name))


def _children() -> dict[int, str]:
    found = {}
    me = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # "PID (name) STATE PPID …", and the name may hold spaces and parentheses.
        fields = _read(entry / "stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[1] == me:
            command = _read(entry / "cmdline").replace("\0", " ").strip()
            found[int(entry.name)] = command or "(a zombie)"
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
