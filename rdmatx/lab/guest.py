"""Process 1 of the guest: makes the world the command sees, runs it, reports its end.

Runs inside the lab's kernel with the standard library alone. The runner writes what is
wanted (see ``boot.Spec``) as JSON and names the file on the command line.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import termios
import time
import tty
from pathlib import Path
from typing import Any

from rdmatx.lab import frames
from rdmatx.lab.guest_command import Command, end_others
from rdmatx.lab.power import POWER_OFF

CHANNEL = "/dev/ttyS0"
ROOT = "/run/root"
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_MOVE = 1, 2, 4, 4096, 8192
DEVICE_WAIT_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """The guest cannot be made; the text says which step failed and why."""


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2); makes the folder ``target`` where it is missing; raises ``SetupError``."""
    if not os.path.exists(target):
        os.makedirs(target, exist_ok=True)
    kind_bytes = kind.encode() if kind else None
    status = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind_bytes,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    if status:
        reason = os.strerror(ctypes.get_errno())
        raise SetupError(f"mounting {kind or source} on {target}: {reason}")


def make_root(writable: list[str]) -> None:
    """Covers the host's read-only root with an overlay, and makes it the root.

    Only the folders of ``writable`` are the host's own again.
    """
    mount("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for folder in ("upper", "work"):
        os.mkdir(f"/run/{folder}")
    layers = "lowerdir=/,upperdir=/run/upper,workdir=/run/work"
    mount("rdmatx-lab", ROOT, "overlay", 0, layers)
    mount("proc", f"{ROOT}/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("sysfs", f"{ROOT}/sys", "sysfs", MS_NOSUID | MS_NODEV)
    mount("devtmpfs", f"{ROOT}/dev", "devtmpfs", MS_NOSUID)
    mount("devpts", f"{ROOT}/dev/pts", "devpts", MS_NOSUID, "ptmxmode=666,mode=620,gid=5")
    mount("shm", f"{ROOT}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount("run", f"{ROOT}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for folder in writable:
        mount("workdir", ROOT + folder, "hostfs", MS_NOSUID | MS_NODEV, folder)
    os.chdir(ROOT)
    mount(".", "/", None, MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def make_devices() -> None:
    """The names in /dev that programs expect and devtmpfs does not make."""
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(target, f"/dev/{name}")
    for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx"):
        if os.path.exists(f"/dev/{name}"):
            os.chmod(f"/dev/{name}", 0o666)


def make_host_files(cpuinfo: str, hostname: str, names: list[str]) -> None:
    """The processor's description, and names for this host and the others that resolve."""
    Path("/run/cpuinfo").write_text(cpuinfo)
    mount("/run/cpuinfo", "/proc/cpuinfo", None, MS_BIND)
    socket.sethostname(hostname)
    hosts = Path("/etc/hosts")
    known = hosts.read_text(errors="replace") if hosts.exists() else "127.0.0.1 localhost\n"
    hosts.write_text("\n".join([known.rstrip(), *names, ""]))


def run_setup(commands: list[list[str]], path: str) -> None:
    """Runs the commands that make the devices; raises ``SetupError`` with their words."""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                env={"PATH": path},
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            raise SetupError(f"`{' '.join(command)}`: {error.strerror}") from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            raise SetupError(f"`{' '.join(command)}` exited {done.returncode}: {words}")


def wait_active(gids: dict[str, list[str]]) -> None:
    """Returns when port 1 of each device is ACTIVE and has its GIDs, by device.

    Raises ``SetupError`` after five seconds.
    """
    deadline = time.monotonic() + DEVICE_WAIT_S
    for device, wanted in gids.items():
        port = Path(f"/sys/class/infiniband/{device}/ports/1")
        while not ("ACTIVE" in read(port / "state") and set(wanted) <= gids_of(port)):
            if time.monotonic() > deadline:
                raise SetupError(
                    f"{device} did not become ACTIVE with the GIDs {', '.join(wanted)} in "
                    f"{DEVICE_WAIT_S:.0f} s; it is {read(port / 'state') or 'missing'}"
                )
            time.sleep(0.02)


def read(file: Path) -> str:
    """What a file of sysfs holds; nothing where it is missing or cannot be read now."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def gids_of(port: Path) -> set[str]:
    """The GIDs that a port has now."""
    table = port / "gids"
    return {read(entry) for entry in table.iterdir()} if table.is_dir() else set()


def open_channel() -> int:
    """The line to the runner, with every translation of bytes off."""
    channel = os.open(CHANNEL, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(channel)
    os.set_inheritable(channel, False)
    return channel


def finish(channel: int, last: bytes) -> None:
    """Ends what still runs, brings files to the host, says the last word, waits for the end.

    The runner ends the kernel when all hosts have said theirs. Until then this host answers what
    the others may still ask of it: the last packets of a connection, say.
    """
    end_others()
    os.sync()
    view = memoryview(last)
    while view:
        view = view[os.write(channel, view) :]
    termios.tcdrain(channel)
    while os.read(channel, 4096):
        pass
    _libc.reboot(ctypes.c_int(POWER_OFF))


def main(spec_file: str) -> None:
    """Sets the guest up, runs the command, powers off; never returns."""
    spec: dict[str, Any] = json.loads(Path(spec_file).read_text())
    last = b""
    channel = -1
    try:
        make_root(spec["writable"])
        make_devices()
        channel = open_channel()
        make_host_files(spec["cpuinfo"], spec["hostname"], spec["names"])
        run_setup(spec["setup"], spec["setup_path"])
        wait_active(spec["gids"])
        os.write(channel, frames.encode(frames.READY))
        status = Command(spec, channel).run()
        last = frames.encode(frames.EXIT, bytes([status]))
    except Exception as error:
        if channel < 0:
            # Nothing reaches the runner but the kernel's own log.
            sys.stderr.write(f"rdmatx-lab: {error}\n")
            sys.stderr.flush()
            _libc.reboot(ctypes.c_int(POWER_OFF))
        last = frames.encode(frames.FAILED, f"{error}".encode())
    finish(channel, last)


if __name__ == "__main__":
    main(sys.argv[1])
