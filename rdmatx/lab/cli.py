"""The command line of the lab, on its own and as part of `rdmatx`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab.kernel import build_kernel
from rdmatx.lab.options import LINGER_S, Options
from rdmatx.lab.power import power_off
from rdmatx.lab.runner import run_command

LAB_FAILED = 125
"""The exit status of `run` where the lab, not the command, failed."""


def configure(commands: Any) -> argparse.ArgumentParser:
    """Adds ``lab`` to ``commands`` (of ``add_subparsers``); returns the parser it made."""
    lab: argparse.ArgumentParser = commands.add_parser(
        "lab",
        help="a kernel with soft-RoCE around a command",
        description="Boots a kernel with a real RoCE device around a command, without root.",
    )
    add_actions(lab)
    return lab


def add_actions(lab: argparse.ArgumentParser) -> None:
    """Adds ``build``, ``run`` and ``poweroff`` to the parser ``lab``."""
    actions = lab.add_subparsers(dest="lab_action", metavar="ACTION", required=True)
    _add_build(actions)
    _add_run(actions)
    actions.add_parser(
        "poweroff",
        help="inside: power this host off at once",
        description="Inside the lab, as root there: ends this host's kernel at once, without a word "
        "to anybody, as if its plug were pulled.",
    )


def _add_build(actions: Any) -> None:
    build = actions.add_parser(
        "build",
        help="build the kernel and keep it in the cache",
        description="Builds the lab's kernel (a few minutes, no root) and prints its path.",
    )
    build.add_argument(
        "--source",
        type=Path,
        metavar="PATH",
        help="a kernel tree or tarball, instead of the distribution's linux-source package",
    )
    build.add_argument("--force", action="store_true", help="build also where the cache has it")
    build.add_argument("--json", action="store_true", help="print one JSON object")


def _add_run(actions: Any) -> None:
    run = actions.add_parser(
        "run",
        usage="%(prog)s [OPTIONS] -- COMMAND…",
        help="run a command with a RoCE device",
        description="Runs COMMAND in the lab's kernel, with rxe0 ACTIVE; exits with its status.",
    )
    run.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help="2: COMMAND on two kernels that a link joins; RDMATX_LAB_HOST is 0 or 1 there and "
        "RDMATX_LAB_PEERS has the addresses of both (default: 1)",
    )
    run.add_argument(
        "--rails",
        type=int,
        metavar="N",
        help="so many devices rxe0, rxe1, … a host, each on a network device and subnet of its own",
    )
    run.add_argument(
        "--netem",
        metavar="WORDS",
        help='with --hosts 2: disturb every link at both ends, as tc-netem(8) says: "loss 1%% delay 5ms"',
    )
    run.add_argument(
        "--linger",
        type=float,
        default=LINGER_S,
        metavar="S",
        help="when one host has failed, end the other after S seconds (default: %(default)g)",
    )
    run.add_argument("--mem", help="memory of each guest (default: 4G, or 2G for each of two)")
    run.add_argument(
        "--timeout", type=float, metavar="S", help="kill after S seconds and exit with 124"
    )
    run.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="where to run, and what stays writable (default: the current folder)",
    )
    run.add_argument("--user", type=int, metavar="UID", help="user inside (default: the caller)")
    run.add_argument("-t", "--tty", action="store_true", help="connect the terminal, for a shell")
    run.add_argument(
        "--native", action="store_true", help="no kernel: use the host's own RDMA device"
    )
    run.add_argument("--verbose", action="store_true", help="show the kernel's messages")
    run.add_argument(
        "--json",
        action="store_true",
        help="a JSON object for each line of output and each end, on stdout",
    )
    run.add_argument("lab_command", nargs=argparse.REMAINDER, metavar="-- COMMAND…")


def execute(args: argparse.Namespace) -> int:
    """Does what the parsed ``args`` ask; returns the exit status."""
    is_run = args.lab_action == "run"
    actions = {"build": _build, "run": _run, "poweroff": _power_off}
    try:
        return actions[args.lab_action](args)
    except UsageError as error:
        sys.stderr.write(f"rdmatx lab: {error}\n")
        return LAB_FAILED if is_run else 2
    except UnavailableError as error:
        sys.stderr.write(f"rdmatx lab: {error}\n")
        return LAB_FAILED if is_run else 1


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m rdmatx.lab``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rdmatx.lab", description="A kernel with soft-RoCE around a command."
    )
    add_actions(parser)
    return execute(parser.parse_args(argv))


def given_command(args: argparse.Namespace) -> list[str]:
    """The command to run, without the `--` before it, which some versions of argparse keep."""
    words: list[str] = args.lab_command
    return words[1:] if words[:1] == ["--"] else words


def _run(args: argparse.Namespace) -> int:
    command = given_command(args)
    options = Options(
        mem=args.mem,
        timeout=args.timeout,
        native=args.native,
        workdir=args.workdir,
        user=args.user,
        tty=args.tty,
        verbose=args.verbose,
        hosts=args.hosts,
        rails=args.rails,
        netem=args.netem,
        linger=args.linger,
        json=args.json,
    )
    return run_command(command, options)


def _power_off(_: argparse.Namespace) -> int:
    power_off()
    return 1


def _build(args: argparse.Namespace) -> int:
    started = time.monotonic()
    show = ProgressLine()
    try:
        path = build_kernel(args.source, force=args.force, progress=show)
    except KeyboardInterrupt:
        show.end()
        return 130
    finally:
        show.end()
    if args.json:
        seconds = round(time.monotonic() - started, 1)
        print(json.dumps({"kernel": str(path), "version": path.parent.name, "seconds": seconds}))
    else:
        print(path)
    return 0


class ProgressLine:
    """Shows progress on stderr: one line rewritten on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._shown = float("-inf")
        self._open = False
        self._started = time.monotonic()

    def __call__(self, phase: str, detail: str) -> None:
        """Shows that ``phase`` has come as far as ``detail`` says."""
        now = time.monotonic()
        changed = phase != self._phase
        if not changed and now - self._shown < (0.2 if self._terminal else 20.0):
            return
        if changed:
            self.end()
        self._phase, self._shown = phase, now
        text = f"lab: {phase:<9} {detail}  [{now - self._started:.0f} s]"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            self._open = True
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves the rewritten line as it stands."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False
