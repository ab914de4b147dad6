"""``rdmatx bench``: arguments and report."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rdmatx.cli.errors import CommandError
from rdmatx.cli.options import add_device_options, add_json_option
from rdmatx.cli.output import (
    emit,
    format_size,
    format_table,
    note,
    parse_count,
    parse_sizes,
    say,
)

if TYPE_CHECKING:
    from rdmatx.cli.bench.p2p import Plan, Result

_P2P_NOTES = """\
Two processes on this host, one connection. --op send: both sides call; write and read: the
target sleeps. --mode bw: the time of a stream of operations with several under way; --mode lat:
half a round trip for send, the time until the operation is complete for write and read.

Every round verifies the bytes. A number is the median of the rounds. The peers take their turn
in the same processes, round by round: gloo (PyTorch over TCP, send and receive whatever --op
says), cma (process_vm_writev or readv between the two processes), memcpy (inside one process),
and for --op send --mode bw ring (two copies, both processes at once, through shared memory) and
split (each process copies one half by cma). perftest (ib_write_bw and its like on the same
device) brings processes of its own. mpi (Open MPI, called through mpi4py) and ucx (through ucxx)
run in processes of their own too, with messages only, once with and once without the kernel's
single copy (CMA): the better is reported. nixl has writes and reads, and as --op send --mode lat
a write with a notification there and back. `ratio` is how many times as fast as the peer we are:
of rates for bw, of p50 times for lat.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx bench``."""
    kinds = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    p2p = kinds.add_parser(
        "p2p",
        help="between two processes: bandwidth or latency of send, write, read",
        description="Measures one connection between two processes.",
        epilog=_P2P_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p2p.add_argument("--op", choices=("send", "write", "read"), default="write")
    p2p.add_argument("--mode", choices=("bw", "lat"), default="bw")
    p2p.add_argument(
        "--sizes",
        type=parse_sizes,
        metavar="S,S",
        help="bytes an operation, such as 8,64K,1M (default: 64K,1M,16M,64M; lat: 8,4K,64K)",
    )
    p2p.add_argument("--rounds", type=parse_count, default=5, metavar="N", help="default: 5")
    p2p.add_argument(
        "--iterations",
        type=parse_count,
        metavar="N",
        help="operations a round (default: as many as take a quarter of a second)",
    )
    p2p.add_argument(
        "--vs",
        type=_parse_peers,
        default=[],
        metavar="PEER,PEER",
        help="compare with gloo, cma, ring, split, memcpy, mpi, ucx, nixl, perftest in the same run",
    )
    p2p.add_argument(
        "--memory",
        choices=("ordinary", "empty"),
        default="ordinary",
        help="the target's memory: private pages, or of rdmatx.empty (default: ordinary)",
    )
    p2p.add_argument(
        "--huge", action="store_true", help="2 MiB pages in private memory (default: 4 KiB)"
    )
    p2p.add_argument(
        "--unregistered",
        action="store_true",
        help="give the operations plain buffers (default: memory that was registered before)",
    )
    add_device_options(p2p)
    add_json_option(p2p)


def _parse_peers(text: str) -> list[str]:
    from rdmatx.cli.bench.p2p import PEERS

    names = text.split(",")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no peer: choose among {', '.join(PEERS)}"
            )
    return list(dict.fromkeys(names))


def execute(arguments: argparse.Namespace) -> int:
    """Measures and reports; fails where a payload arrived wrong."""
    from rdmatx.cli.bench.p2p import run

    plan = _make_plan(arguments)
    results = []
    for result in run(plan):
        results.append(result)
        if arguments.json:
            for record in result.records():
                emit(record)
        elif sys.stderr.isatty():
            note(f"measured {format_size(result.case.bytes)}")
    if not arguments.json:
        say(_format_heading(results[0]))
        say(format_results(results))
    wrong = [format_size(result.case.bytes) for result in results if not result.verified]
    if wrong:
        raise CommandError(f"bytes arrived wrong at {', '.join(wrong)}: the numbers are worthless")
    return 0


def _make_plan(arguments: argparse.Namespace) -> Plan:
    from rdmatx.cli.bench.case import Case
    from rdmatx.cli.bench.p2p import Plan

    is_latency = arguments.mode == "lat"
    default = [8, 4 << 10, 64 << 10] if is_latency else [64 << 10, 1 << 20, 16 << 20, 64 << 20]
    sizes = arguments.sizes or default
    if not is_latency and 0 in sizes:
        raise CommandError("0 bytes have no bandwidth: take another size, or --mode lat")
    case = Case(
        op=arguments.op,
        mode=arguments.mode,
        memory=arguments.memory,
        huge=arguments.huge,
        registered=not arguments.unregistered,
        device=arguments.device,
        provider=arguments.provider,
    )
    return Plan(case, sizes, arguments.vs, arguments.rounds, arguments.iterations)


def _format_heading(result: Result) -> str:
    case = result.case
    pages = "2 MiB" if case.huge else "4 KiB"
    return (
        f"{case.op} {case.mode} over {result.identity['device']} "
        f"({result.identity['provider']}), {case.memory} memory, {pages} pages, "
        f"median of {result.rounds} rounds"
    )


def format_results(results: list[Result]) -> str:
    """The table for people: a row a size, and two columns a peer."""
    first = results[0]
    is_latency = first.case.mode == "lat"
    headings = ["bytes", *(("p50 µs", "p99 µs", "p99.9 µs") if is_latency else ("GB/s",))]
    headings += ["cpu s/GB", "verified"]
    for name in first.peers:
        headings += [f"{name} {'µs' if is_latency else 'GB/s'}", f"ours/{name}"]
    rows = []
    for result in results:
        records = result.records()
        row: list[Any] = [format_size(result.case.bytes), *_speeds(records[0], "")]
        row += [_number(records[0]["cpu_s_per_gb"]), "yes" if result.verified else "NO"]
        for record in records if result.peers else []:
            row += [_speeds(record, "peer_")[0], f"{record['ratio']:.2f}"]
        rows.append(row)
    return format_table(headings, rows)


def _speeds(record: dict[str, Any], prefix: str) -> list[str]:
    if record["mode"] == "lat":
        return [_number(value) for value in record[f"{prefix}lat_us"].values()]
    return [_number(record[f"{prefix}gbytes_per_s"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
