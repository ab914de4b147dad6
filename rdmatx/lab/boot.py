"""What is booted: the guest's specification, its memory, the kernel's command line."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab import tools

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
SMALLEST_MEMORY = 128 << 20
LIMITS = (
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_STACK,
    resource.RLIMIT_CORE,
)


@dataclass(frozen=True)
class Spec:
    """What the guest is told, as JSON. Written by the runner, read by ``guest.main``."""

    command: list[str]
    workdir: str
    writable: list[str]
    """Folders of the host that are its own inside as well; absolute, parents first."""
    environment: dict[str, str]
    uid: int
    gid: int
    groups: list[int]
    umask: int
    limits: dict[int, tuple[int, int]]
    """Resource: soft and hard limit, in the units of setrlimit(2)."""
    cpuinfo: str
    terminal: list[int]
    """Those of the streams 0, 1, 2 that are a pseudo-terminal inside."""
    interactive: bool
    window: tuple[int, int]
    """Rows and columns of that terminal."""
    input: bool
    """Whether stdin is carried; otherwise it is empty."""
    setup: list[list[str]]
    """Commands that make the guest's devices, run as root before the command."""
    gids: dict[str, list[str]]
    """RDMA devices that must be ACTIVE, with these GIDs, before the command starts."""
    hostname: str
    names: list[str]
    """Lines for /etc/hosts."""
    setup_path: str = field(default_factory=tools.search_path)


def parse_memory(text: str) -> int:
    """Text such as "512M" or "4G" as bytes; raises ``UsageError`` for others and below 128M."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if not match:
        raise UsageError(f"memory {text!r}: give a number and K, M or G, as in 4G")
    size = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    if size < SMALLEST_MEMORY:
        raise UsageError(f"memory {text!r}: the guest needs 128M at least")
    return size


def memory_folder(size: int) -> Path:
    """Where the memory of all guests lives: a tmpfs with room, else any folder with room.

    Each guest's file has no name and takes room only as the guest uses it. Raises ``UnavailableError``.
    """
    candidates = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    seen: list[str] = []
    for folder in dict.fromkeys(candidates):
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
        free = stat.f_bavail * stat.f_frsize
        executable = not stat.f_flag & os.ST_NOEXEC
        if executable and free >= size and os.access(folder, os.W_OK):
            return folder
        seen.append(f"{folder} {'' if executable else 'noexec, '}{free >> 20} MiB free")
    raise UnavailableError(
        f"no folder has room for {size >> 20} MiB of guest memory ({'; '.join(seen)}): ask for "
        "less with --mem, or set TMPDIR to a folder with room that is not mounted noexec"
    )


def guest_cpuinfo() -> str:
    """The host's /proc/cpuinfo for one processor, with a "cpu MHz" line in any case.

    User-mode Linux has no such line, and perftest computes zeros without it.
    """
    text = Path("/proc/cpuinfo").read_text().split("\n\n")[0].rstrip() + "\n"
    if not re.search(r"^cpu MHz\s*:", text, re.M):
        text += "cpu MHz\t\t: 1000.000\n"
    return text + "\n"


def guest_environment(network: dict[str, str]) -> dict[str, str]:
    """The caller's environment, with RDMATX_LAB=1 and the sbin folders behind its PATH.

    ``network`` is what the guest is told of its network.
    """
    return {**os.environ, "PATH": tools.search_path(), "RDMATX_LAB": "1", **network}


def guest_limits() -> dict[int, tuple[int, int]]:
    """The caller's limits on locked memory, open files, stack and core files."""
    return {limit: resource.getrlimit(limit) for limit in LIMITS}


def writable_folder(workdir: Path) -> str:
    """The folder that is the host's own inside; raises ``UsageError`` where it cannot be."""
    folder = workdir.resolve()
    if not folder.is_dir():
        raise UsageError(f"{workdir} is not a folder")
    reserved = [Path("/proc"), Path("/sys"), Path("/dev")]
    shared_memory = Path("/dev/shm") in folder.parents
    below = any(top == folder or top in folder.parents for top in reserved)
    if folder == Path("/") or (below and not shared_memory):
        raise UsageError(
            f"the lab cannot run in {folder}: everything in the working folder is writable, and "
            "this one is the system's; change to a folder of your own or name one with --workdir"
        )
    return str(folder)


def make_folder() -> Path:
    """A new private folder for one run; its path is short, since sockets will lie in it."""
    base = tempfile.gettempdir()
    if len(base) > 40 or not re.fullmatch(r"[\w./+-]+", base):
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="rdmatx-lab-", dir=base))


def interpreter() -> str:
    """The Python that runs the keeper and the guest: the caller's own."""
    return sys.executable or shutil.which("python3") or "/usr/bin/python3"


def write_guest(folder: Path, spec: Spec) -> Path:
    """Writes the specification and the init program into ``folder``; the init's path.

    Init is the caller's interpreter on the caller's files, in isolated mode.
    """
    spec_file = folder / "spec.json"
    spec_file.write_text(json.dumps(asdict(spec)))
    start = (
        f"import sys; sys.path.append({str(PACKAGE_PARENT)!r}); "
        f"from rdmatx.lab.guest import main; main({str(spec_file)!r})"
    )
    line = shlex.join([interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", start])
    init = folder / "init"
    init.write_text(f"#!/bin/sh\nexec {line}\n")
    init.chmod(0o755)
    return init


def kernel_command(
    kernel: Path, *, memory: int, init: Path, folder: Path, channel: int, network: Sequence[str]
) -> list[str]:
    """The kernel's command line. ``network`` holds what makes network devices (``vecN:…``)."""
    return [
        str(kernel),
        f"mem={memory >> 20}M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={init}",
        "con0=null,fd:1",
        "con=null",
        f"ssl0=fd:{channel}",
        "ssl=null",
        "umid=guest",
        f"uml_dir={folder}/",
        "panic=-1",
        *network,
    ]
