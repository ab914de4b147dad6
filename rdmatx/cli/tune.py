"""``rdmatx tune``: which algorithm serves which collective, measured, in a table that groups read."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdmatx.cli.errors import CommandError
from rdmatx.cli.options import add_json_option
from rdmatx.cli.output import emit, format_size, format_table, note, parse_size, say

if TYPE_CHECKING:
    from rdmatx.group import Group
    from rdmatx.tuning import Line, Table

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
CHUNKS = (256 << 10, 1 << 20, 4 << 20)
SMALLEST = 1 << 10
#: All beyond the largest size that was measured is taken to be like it.
UNBOUNDED = 1 << 62


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx tune``."""
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="processes on this host (2)"
    )
    parser.add_argument(
        "--max-size", type=parse_size, default=16 << 20, metavar="BYTES", help="largest size (16M)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="how long each algorithm is measured (0.1)"
    )
    parser.add_argument(
        "--out", type=Path, default=None, metavar="FILE", help="where the table goes, or into which"
    )
    add_json_option(parser)
    parser.epilog = (
        "Started alone it starts N processes on this host. Started by torchrun or mpirun it measures\n"
        "among the processes that were started with it, on as many hosts as they are on.\n"
        "Lines of other worlds that the file has are kept. Without --out it is the file that groups\n"
        "read by themselves: RDMATX_TUNING, else ~/.config/rdmatx/tuning.json."
    )


def execute(arguments: argparse.Namespace) -> int:
    """Measures and writes the table; rank 0 prints it."""
    if arguments.seconds <= 0 or arguments.ranks < 1 or arguments.max_size < SMALLEST:
        raise CommandError("--seconds and --ranks are positive, and --max-size is 1K at least")
    from rdmatx import bootstrap
    from rdmatx.errors import UsageError

    try:
        bootstrap.environment()
    except UsageError:
        return _start_ranks(arguments.ranks)
    return _measure_all(arguments)


def _start_ranks(ranks: int) -> int:
    """This command again, once for each rank."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "rdmatx", *sys.argv[1:]]
    processes = [
        subprocess.Popen(command, env={**shared, "MASTER_PORT": str(port), "RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        # One that fails ends the group, and so all of them.
        return max(abs(process.wait()) for process in processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _measure_all(arguments: argparse.Namespace) -> int:
    from rdmatx import tuning
    from rdmatx.group import Group

    sizes = [SMALLEST]
    while sizes[-1] * 4 <= arguments.max_size:
        sizes.append(sizes[-1] * 4)
    os.environ.pop("RDMATX_ALGORITHM", None)
    with Group.from_env() as group:
        measured: Table = []
        for collective in COLLECTIVES:
            best = [_best(group, collective, size, arguments) for size in sizes]
            measured += _merged(collective, group.world, sizes, best)
        if group.rank > 0:
            group.barrier()
            return 0
        path = arguments.out or Path(os.environ.get("RDMATX_TUNING") or tuning.default_path())
        _write(path, measured, group.world)
        group.barrier()
    if not arguments.json:
        say(_format(measured))
        note(f"written to {path}")
    return 0


def _best(
    group: Group, collective: str, size: int, arguments: argparse.Namespace
) -> tuple[str, int]:
    """The fastest algorithm and chunk of one size."""
    from rdmatx import _C

    results: dict[tuple[str, int], float] = {}
    for algorithm in _C.collective_algorithms(collective):
        for chunk in CHUNKS if size > CHUNKS[0] else CHUNKS[:1]:
            call = _call(group, collective, size, algorithm, chunk)
            seconds = _median(group, call, arguments.seconds)
            results[algorithm, chunk] = seconds
            if arguments.json and group.rank == 0:
                emit(
                    {
                        "collective": collective,
                        "world": group.world,
                        "bytes": size,
                        "algorithm": algorithm,
                        "chunk_bytes": chunk,
                        "time_us": seconds * 1e6,
                    }
                )
    return min(results, key=lambda key: results[key])


def _call(
    group: Group, collective: str, size: int, algorithm: str, chunk: int
) -> Callable[[], Any]:
    one = memoryview(bytearray(size)).cast("f")
    every = memoryview(bytearray(size * group.world)).cast("f")
    buffers: dict[str, tuple[Any, Any]] = {
        "all_reduce": (None, one),
        "reduce_scatter": (every, one),
        "all_gather": (one, every),
        "broadcast": (None, one),
        "reduce": (one, one if group.rank == 0 else None),
    }
    given, result = buffers[collective]
    details = {"dtype": "float32", "count": size // 4, "algorithm": algorithm, "chunk_bytes": chunk}
    return lambda: group._run(collective, given, result, None, **details)


def _median(group: Group, call: Callable[[], Any], seconds: float) -> float:
    """Of one call, on the rank that takes longest; all ranks get the same number."""
    shared = memoryview(bytearray(8)).cast("d")

    def slowest(value: float) -> float:
        shared[0] = value
        group.all_reduce(shared, "max", algorithm="direct")
        return float(shared[0])

    def timed() -> float:
        group.barrier()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    timed()
    once = slowest(timed())
    rounds = int(min(1000, max(3, seconds / max(once, 1e-7))))
    return slowest(statistics.median(timed() for _ in range(rounds)))


def _merged(
    collective: str, world: int, sizes: list[int], best: list[tuple[str, int]]
) -> list[Line]:
    """A line for each stretch of sizes that one algorithm is best for."""
    # Half way to the next size, as ratios go.
    bounds = [small * 2 for small, _ in pairwise(sizes)] + [UNBOUNDED]
    lines: list[Line] = []
    for bound, (algorithm, chunk) in zip(bounds, best, strict=True):
        if lines and lines[-1][3:] == (algorithm, chunk):
            lines.pop()
        lines.append((collective, world, bound, algorithm, chunk))
    return lines


def _write(path: Path, measured: Table, world: int) -> None:
    from rdmatx import tuning

    kept: Table = []
    if path.exists():
        table = tuning.from_bytes(path.read_bytes(), str(path))
        kept = [line for line in table if line[1] != world or line[0] not in COLLECTIVES]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(tuning.to_bytes(sorted(kept + measured, key=lambda line: line[:3])))
    partial.replace(path)


def _format(table: Table) -> str:
    rows = [
        [
            collective,
            str(world),
            "all others" if bound == UNBOUNDED else f"up to {format_size(bound)}",
            algorithm,
            format_size(chunk),
        ]
        for collective, world, bound, algorithm, chunk in table
    ]
    return format_table(["collective", "ranks", "bytes", "algorithm", "chunks"], rows)
