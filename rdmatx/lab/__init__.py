"""A real RoCE device on any x86-64 Linux, without kernel modules and without root.

The lab builds a User-mode Linux kernel that has soft-RoCE (``rdma_rxe``) and boots it as
an ordinary process around a command: the command sees the caller's files, folder and
environment, and an ACTIVE ``rxe0``.

>>> from rdmatx import lab
>>> lab.build(None)                                      # doctest: +SKIP
>>> lab.run(["ibv_devinfo"])                             # doctest: +SKIP

Nothing here needs the C++ extension: ``python -m rdmatx.lab`` works in a bare checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdmatx.lab.readiness import Status

__all__ = ["build", "run", "run_hosts", "status"]


def build(
    source: Path | None = None,
    *,
    force: bool = False,
    progress: Callable[[str, str], None] | None = None,
) -> Path:
    """Builds the kernel, unless the cache has it already, and returns its path.

    ``source`` is an unpacked kernel tree or a tarball of one (6.1 or newer); without it the
    distribution's ``linux-source`` package is downloaded, which needs no root. ``force``
    builds again. ``progress(phase, detail)`` is called as the work goes on. It takes a few
    minutes, and about 2 GB of disk that are given back at the end.

    Raises ``UnavailableError`` where tools are missing or the build fails, and ``UsageError``
    where ``source`` is no kernel source.
    """
    from rdmatx.lab.kernel import build_kernel

    return build_kernel(source, force=force, progress=progress)


def run(
    command: Sequence[str],
    *,
    mem: str | None = None,
    timeout: float | None = None,
    native: bool = False,
    workdir: Path | None = None,
    user: int | None = None,
    tty: bool = False,
    verbose: bool = False,
    hosts: int = 1,
    rails: int | None = None,
    netem: str | None = None,
    linger: float = 30.0,
    json: bool = False,
) -> int:
    """Runs ``command`` with an RDMA device and returns its exit status.

    The status is the command's own; 128 + n where signal n ended it; 124 where ``timeout``
    (seconds) ended it; 127 and 126 where it was not found or not executable.

    ``hosts=2`` runs it on two kernels at once, which a link joins; it finds out where it is by
    ``RDMATX_LAB_HOST`` (0 or 1) and where the others are by ``RDMATX_LAB_PEERS`` (IPv4 addresses,
    separated by commas, ``peers[host]`` its own). The status is 0 where both ended with 0, else that
    of the one that failed first, with 125 for a host that was powered off. When one has failed the
    other is ended ``linger`` seconds later. ``rails`` is the number of RDMA devices of each host
    (``rxe0``, ``rxe1``, …), each on a network device and a subnet of its own; rail i reaches rail i.
    ``netem`` disturbs every link at both ends, in the words of tc-netem(8): ``"loss 1% delay 5ms"``.
    ``json`` writes a JSON object for each line of output and each end to stdout.

    ``mem`` is the memory of each guest (``"512M"``; by default 4G, or 2G for each of two).
    ``workdir`` (default: the current folder) is where the command runs and the one folder whose
    changes stay; every other write is forgotten. ``user`` is the numeric user inside (default: the
    caller's own). ``tty`` connects the caller's terminal to the command. ``verbose`` shows the
    kernel's messages on stderr. ``native`` starts no kernel and uses the host's own RDMA device.

    Raises ``UnavailableError`` where the kernel is not built or does not start, or where the
    host has no device for ``native``; ``UsageError`` for arguments that make no sense.
    """
    from rdmatx.lab.options import Options
    from rdmatx.lab.runner import run_command

    options = Options(
        mem=mem,
        timeout=timeout,
        native=native,
        workdir=workdir,
        user=user,
        tty=tty,
        verbose=verbose,
        hosts=hosts,
        rails=rails,
        netem=netem,
        linger=linger,
        json=json,
    )
    return run_command(list(command), options)


def run_hosts(command: Sequence[str], *, hosts: int = 2, **choices: Any) -> list[int]:
    """Like ``run``, with the same choices; returns the status of each host by its index."""
    from rdmatx.lab.options import Options
    from rdmatx.lab.runner import run_command_on_hosts

    return run_command_on_hosts(list(command), Options(hosts=hosts, **choices))[1]


def status() -> Status:
    """What the lab has and lacks on this machine; starts nothing and raises nothing."""
    from rdmatx.lab.readiness import current_status

    return current_status()
