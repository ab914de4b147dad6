"""Runs a command in the lab: looks at what is asked and what is there, then starts a session."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab import boot, cache, tools
from rdmatx.lab.native import run_native
from rdmatx.lab.options import Options
from rdmatx.lab.session import Session
from rdmatx.lab.terminal import Signals, raw_terminal, window_size


def run_command(command: list[str], options: Options) -> int:
    """Runs ``command`` and returns its exit status; raises what ``rdmatx.lab.run`` documents."""
    return run_command_on_hosts(command, options)[0]


def run_command_on_hosts(command: list[str], options: Options) -> tuple[int, list[int]]:
    """Runs ``command`` on every host; the status of the run, and that of each host."""
    if not command:
        raise UsageError("no command to run: give one behind `--`")
    options.check()
    network = options.network()
    if options.native:
        status = run_native(command, options.timeout, options.workdir)
        return status, [status]
    tools.require_machine()
    if os.environ.get("RDMATX_LAB"):
        raise UsageError("this is the inside of the lab already: run the command itself")
    kernel = cache.find_kernel()
    if kernel is None:
        raise UnavailableError("the lab's kernel is not built: run `rdmatx lab build`")
    programs = {**tools.RUN_PACKAGES, **(tools.NETEM_PACKAGES if network.netem else {})}
    tools.require(programs, "the lab")
    settle_streams()
    specs = [make_spec(command, options, host) for host in range(options.hosts)]
    with Signals() as signals, raw_terminal(options.tty):
        session = Session(kernel, specs, options, network)
        try:
            status = session.run(signals)
        finally:
            session.close()
    return status, session.statuses()


def settle_streams() -> None:
    """Writes out what Python holds back, and fills closed streams so that no pipe becomes one."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def make_spec(command: list[str], options: Options, host: int) -> boot.Spec:
    """What a guest is told of the caller and of the network."""
    network = options.network()
    folder = boot.writable_folder(options.workdir or Path.cwd())
    own_lines = options.hosts > 1 or options.json
    terminal = [] if own_lines else [number for number in (1, 2) if os.isatty(number)]
    if options.tty:
        if not (os.isatty(0) and os.isatty(1)):
            raise UsageError("--tty needs a terminal on stdin and stdout")
        terminal.insert(0, 0)
    own = options.user is None or options.user == os.geteuid()
    uid = os.geteuid() if options.user is None else options.user
    mask = os.umask(0o022)
    os.umask(mask)
    return boot.Spec(
        command=command,
        workdir=folder,
        writable=[folder],
        environment=boot.guest_environment(network.environment(host)),
        uid=uid,
        gid=os.getegid() if own else uid,
        groups=os.getgroups() if own else [],
        umask=mask,
        limits=boot.guest_limits(),
        cpuinfo=boot.guest_cpuinfo(),
        terminal=terminal,
        interactive=options.tty,
        window=window_size(),
        input=options.hosts == 1 and (options.tty or has_input()),
        setup=network.setup(host),
        gids=network.gids(host),
        hostname=network.hostname(host),
        names=network.names(),
    )


def has_input() -> bool:
    """Whether stdin is something to pass on: a pipe, a file or a socket."""
    try:
        kind = os.fstat(0)
    except OSError:
        return False
    return not stat.S_ISCHR(kind.st_mode)
