"""What the lab needs of the machine: programs, packages, the processor."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from rdmatx.errors import UnavailableError

BUILD_PACKAGES: dict[str, str] = {
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "perl": "perl",
    "tar": "tar",
    "xz": "xz-utils",
}
"""Program: the Debian package that has it, for everything `rdmatx lab build` calls."""

FETCH_PACKAGES: dict[str, str] = {"apt-get": "apt", "dpkg-deb": "dpkg"}
"""The same for fetching the kernel source (not needed with --source)."""

HEADER_PACKAGES: dict[str, str] = {"/usr/include/stdio.h": "libc6-dev"}
"""File: the Debian package that has it, for the headers the build includes."""

RUN_PACKAGES: dict[str, str] = {"rdma": "iproute2", "ip": "iproute2"}
"""The same for `rdmatx lab run`."""

NETEM_PACKAGES: dict[str, str] = {"tc": "iproute2"}
"""The same for its --netem."""

PROVIDER_PACKAGES: tuple[str, ...] = ("libibverbs1", "ibverbs-providers")
"""What a program inside needs to open the device: libibverbs and its rxe provider."""

USEFUL_PACKAGES: tuple[str, ...] = (
    "rdma-core",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "python3-pyverbs",
)
"""Not needed by the lab; diagnostics, benchmarks and an independent peer."""

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path() -> str:
    """The caller's PATH with the system folders behind it, where `rdma` and `ip` often are."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(parts + [folder for folder in SBIN if folder not in parts])


def missing_packages(programs: dict[str, str]) -> dict[str, str]:
    """Those of ``programs`` that are not there, with their packages; files count by path."""
    path = search_path()

    def there(name: str) -> bool:
        return Path(name).exists() if name.startswith("/") else bool(shutil.which(name, path=path))

    return {name: package for name, package in programs.items() if not there(name)}


def install_command(packages: dict[str, str]) -> str:
    """The apt command line that installs the packages of ``packages``."""
    prefix = "" if os.geteuid() == 0 else "sudo "
    return f"{prefix}apt-get install -y {' '.join(sorted(set(packages.values())))}"


def require(programs: dict[str, str], purpose: str) -> None:
    """Raises ``UnavailableError`` that names everything missing at once, with the remedy."""
    missing = missing_packages(programs)
    if missing:
        raise UnavailableError(
            f"{purpose} needs {', '.join(missing)}: install with `{install_command(missing)}`"
        )


def unsupported_machine() -> str | None:
    """Why this machine cannot run the lab at all, or None."""
    if sys.platform != "linux":
        return f"the lab runs on Linux, and this is {sys.platform}"
    if platform.machine() not in ("x86_64", "AMD64"):
        return (
            f"the lab runs on x86-64, and this is {platform.machine()}: User-mode Linux has no "
            "port to it; use a host with rdma_rxe and `rdmatx lab run --native`"
        )
    return None


def require_machine() -> None:
    """Raises ``UnavailableError`` where the lab cannot work on this kind of machine."""
    reason = unsupported_machine()
    if reason:
        raise UnavailableError(reason)
