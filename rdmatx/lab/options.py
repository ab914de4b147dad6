"""The choices of one run, and which of them go together."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from rdmatx.errors import UsageError
from rdmatx.lab.network import MOST_HOSTS, MOST_RAILS, Network

LINGER_S = 30.0


@dataclass(frozen=True)
class Options:
    """``rdmatx.lab.run`` says what each means."""

    mem: str | None = None
    timeout: float | None = None
    native: bool = False
    workdir: Path | None = None
    user: int | None = None
    tty: bool = False
    verbose: bool = False
    hosts: int = 1
    rails: int | None = None
    netem: str | None = None
    linger: float = LINGER_S
    json: bool = False

    @property
    def memory(self) -> str:
        """The memory of each guest; what nobody asked for is the same for all together."""
        return self.mem or ("4G" if self.hosts == 1 else "2G")

    def check(self) -> None:
        """Raises ``UsageError`` where a choice makes no sense, alone or beside another."""
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError("the timeout is a positive number of seconds")
        if not self.linger >= 0:
            raise UsageError("--linger is a number of seconds, 0 or more")
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise UsageError(
                f"--hosts {self.hosts}: the lab joins {MOST_HOSTS} hosts by links between the two; "
                f"give 1 or {MOST_HOSTS}"
            )
        if self.rails is not None and not 1 <= self.rails <= MOST_RAILS:
            raise UsageError(f"--rails {self.rails}: give 1 to {MOST_RAILS}")
        if self.netem is not None and self.hosts == 1:
            raise UsageError(
                "--netem needs --hosts 2: within one kernel soft-RoCE hands packets from queue pair "
                "to queue pair and no network device sees them, so nothing would be lost or delayed"
            )
        if self.tty and self.hosts > 1:
            raise UsageError("--tty goes with one host: a terminal has one keyboard")
        if self.tty and self.json:
            raise UsageError("--tty and --json do not go together")
        if self.native and (self.hosts > 1 or self.rails is not None or self.json):
            raise UsageError(
                "--native uses the device that the host has: it makes no hosts and no rails, and the "
                "command's output is its own"
            )
        self.network()

    def network(self) -> Network:
        """The network that was asked for; raises ``UsageError`` where netem is no list of words."""
        try:
            netem = tuple(shlex.split(self.netem or ""))
        except ValueError as error:
            raise UsageError(f"--netem {self.netem!r}: {error}") from error
        if self.netem is not None and not netem:
            raise UsageError('--netem is what tc-netem(8) takes, such as "loss 1% delay 5ms"')
        return Network(self.hosts, self.rails, netem)
