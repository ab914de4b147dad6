"""One booted kernel as seen by its runner: a channel, a log, and a way to end it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rdmatx.lab import boot, tools

KEEPER = Path(__file__).resolve().parent / "keeper.py"


class Machine:
    """Owns a running kernel through its keeper. ``close`` ends it and all that belongs to it.

    ``channel`` is the non-blocking socket for frames; it closes when the kernel ends. ``log``
    is the non-blocking read end of what the kernel prints.
    """

    def __init__(
        self,
        kernel: Path,
        spec: boot.Spec,
        *,
        memory: int,
        place: Path,
        network: Sequence[str] = (),
        links: Sequence[int] = (),
    ) -> None:
        """Boots ``kernel`` with ``memory`` bytes of a file in the folder ``place``.

        ``network`` makes network devices, on the descriptors ``links``. The kernel gets those;
        the caller closes its own when it has made all machines that they join.
        """
        folder = boot.make_folder()
        try:
            init = boot.write_guest(folder, spec)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.channel, guest_end = socket.socketpair()
        self.log, log = os.pipe()
        lifeline, self._lifeline = os.pipe()
        line = boot.kernel_command(
            kernel,
            memory=memory,
            init=init,
            folder=folder,
            channel=guest_end.fileno(),
            network=network,
        )
        job = {
            "kernel": line,
            "environment": {"PATH": tools.search_path(), "TMPDIR": str(place)},
            "folder": str(folder),
            "channel": guest_end.fileno(),
            "log": log,
            "links": list(links),
            "lifeline": lifeline,
        }
        self._keeper = subprocess.Popen(
            [boot.interpreter(), "-I", "-S", str(KEEPER), json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(guest_end.fileno(), log, lifeline, *links),
        )
        guest_end.close()
        os.close(log)
        os.close(lifeline)
        self.channel.setblocking(False)
        os.set_blocking(self.log, False)

    def close(self) -> None:
        """Ends the kernel, if it still runs, and waits until nothing of it is left."""
        self.channel.close()
        os.close(self.log)
        os.close(self._lifeline)
        self._keeper.wait()
