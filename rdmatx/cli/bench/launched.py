"""The peers that run in processes of their own, and the settings that each is measured with."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.nixl import installed_package
from rdmatx.cli.errors import CommandError

# ucxx sets variables that UCX complains about.
_QUIET_UCX = {"UCX_WARN_UNUSED_ENV_VARS": "n"}
# What asking mpirun for its version may take.
_VERSION_SECONDS = 30.0


@dataclass(frozen=True)
class Setting:
    """One way to run a peer's two processes.

    ``launcher`` is the command that starts both, given to it as ``-n 1 PROGRAM : -n 1 PROGRAM``;
    empty where they are started as ours are. ``environment`` is added to theirs.
    """

    name: str
    launcher: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def settings(peer: str, case: Case) -> list[Setting]:
    """The settings of a peer with processes of its own; the best of them is what is reported.

    Raises ``CommandError`` where the peer is not installed or has no such operation.
    """
    if peer == "nixl":
        return _nixl_settings(case)
    if case.op != "send":
        raise CommandError(
            f"{peer} is compared at messages only: take --op send, or compare --op {case.op} "
            "with cma, memcpy, nixl or perftest"
        )
    return _mpi_settings() if peer == "mpi" else _ucx_settings()


def _mpi_settings() -> list[Setting]:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise CommandError(
            "mpi is Open MPI, called through mpi4py, and mpirun is not installed: apt-get install "
            "openmpi-bin libopenmpi-dev (Fedora, RHEL: dnf install openmpi-devel), then pip "
            "install mpi4py"
        )
    if importlib.util.find_spec("mpi4py") is None:
        raise CommandError(
            "mpi is Open MPI, called through mpi4py, which is not installed: pip install mpi4py"
        )
    said = subprocess.run(
        [mpirun, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_VERSION_SECONDS,
        check=False,
    )
    if "Open MPI" not in said.stdout:
        raise CommandError(
            f"{mpirun} is not Open MPI's: put Open MPI's first into PATH (apt-get install "
            "openmpi-bin libopenmpi-dev)"
        )
    launcher = [mpirun, "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        launcher.append("--allow-run-as-root")
    # Shared memory alone, and polling even where Open MPI thinks that processors are short.
    launcher += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
    launcher += ["--mca", "mpi_yield_when_idle", "0"]
    without = ["--mca", "btl_vader_single_copy_mechanism", "none"]
    return [Setting("with CMA", launcher), Setting("without CMA", [*launcher, *without])]


def _ucx_settings() -> list[Setting]:
    if importlib.util.find_spec("ucxx") is None:
        raise CommandError(
            "ucx is called through ucxx, which is not installed: pip install ucxx-cu12 (it needs "
            "no GPU)"
        )
    return [
        Setting("with CMA", environment={**_QUIET_UCX, "UCX_TLS": "self,posix,cma"}),
        Setting("without CMA", environment={**_QUIET_UCX, "UCX_TLS": "self,posix"}),
    ]


def _nixl_settings(case: Case) -> list[Setting]:
    if case.op == "send" and case.mode == "bw":
        raise CommandError(
            "nixl has no messages: take --mode lat (a write with a notification, there and back), "
            "or --op write or read"
        )
    if installed_package() is None:
        raise CommandError("nixl is not installed: pip install nixl-cu12 (it needs no GPU)")
    # It wants to hear of a peer's end, so the choice of transports is left to it.
    return [Setting("default", environment={**_QUIET_UCX, "NIXL_LOG_LEVEL": "WARN"})]
