"""What the lab has and lacks on this machine, for `rdmatx doctor` and for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rdmatx.errors import UnavailableError
from rdmatx.lab import cache, tools
from rdmatx.lab.native import native_devices


@dataclass(frozen=True)
class Status:
    """One look at the machine.

    ``ready`` says that ``rdmatx lab run`` can be tried now. Otherwise ``problems`` says why
    not and ``remedies`` what to do, one for one. ``kernel`` is the kernel that would boot;
    ``native`` names the host's own RDMA devices.
    """

    kernel: Path | None
    problems: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    native: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.problems

    @property
    def built(self) -> bool:
        """Whether there is a kernel to boot."""
        return self.kernel is not None


def current_status() -> Status:
    """Looks at files only: no process is started."""
    problems: list[str] = []
    remedies: list[str] = []
    kernel: Path | None = None
    unsupported = tools.unsupported_machine()
    if unsupported:
        problems.append(unsupported)
        remedies.append("run the lab on an x86-64 Linux")
    try:
        kernel = cache.find_kernel()
        if kernel is None and not unsupported:
            problems.append("the lab's kernel is not built")
            remedies.append("rdmatx lab build")
    except UnavailableError as error:
        problems.append(str(error))
        remedies.append(f"correct or unset {cache.KERNEL_VARIABLE}")
    missing = tools.missing_packages(tools.RUN_PACKAGES)
    if missing:
        problems.append(f"missing programs: {', '.join(missing)}")
        remedies.append(tools.install_command(missing))
    if kernel is None and not unsupported:
        lacking = tools.missing_packages({**tools.BUILD_PACKAGES, **tools.HEADER_PACKAGES})
        if lacking:
            problems.append(f"missing to build the kernel: {', '.join(lacking)}")
            remedies.append(tools.install_command(lacking))
    return Status(kernel, problems, remedies, native_devices())
