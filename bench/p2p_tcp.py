"""Is the software HCA's TCP wire as fast as one plain socket, and how much faster than gloo?"""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness import Question, ask

from rdmatx.cli.bench.case import Case

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("RDMATX_BUILD_DIR", ROOT / "build" / "native"))
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB)
# Of one blocking socket as the system sets it up, in C++ and without verification.
SOCKET_TARGET = 0.90


def against_a_socket() -> list[str]:
    """RDMA WRITE and SEND straight on the verbs, against a socket; prints a table, returns what was
    missed."""
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "bench_soft_tcp"], check=True)
    done = subprocess.run(
        [BUILD / "tests" / "cpp" / "bench_soft_tcp", *map(str, SIZES)],
        check=True,
        capture_output=True,
        text=True,
    )
    missed = []
    print("GB/s over the loopback interface, two processes, median of seven rounds in turn\n")
    print(
        f"{'bytes':>10} {'socket':>8} {'reno':>8} {'write':>8} {'send':>8}  write/socket  send/socket"
    )
    for line in done.stdout.splitlines():
        result = json.loads(line)
        ratios = {way: result[way] / result["socket"] for way in ("write", "send")}
        columns = [result[way] for way in ("socket", "socket_reno", "write", "send")]
        print(
            f"{result['bytes']:>10} "
            + " ".join(f"{rate:8.2f}" for rate in columns)
            + f"  {ratios['write']:12.2f}  {ratios['send']:11.2f}"
        )
        missed += [
            f"{way}: {result['bytes']} bytes: {ratio:.2f} of a socket, target {SOCKET_TARGET:.2f}"
            for way, ratio in ratios.items()
            if ratio < SOCKET_TARGET
        ]
    print()
    return missed


if __name__ == "__main__":
    os.environ["RDMATX_SOFT_WIRE"] = "tcp"
    too_slow = against_a_socket()
    for text in too_slow:
        print(f"missed: {text}", file=sys.stderr)
    status = ask(
        [
            Question(
                "send and receive, bandwidth, against gloo",
                Case(op="send", provider="soft"),
                SIZES,
                {"gloo": 1.0},
            ),
            Question(
                "send and receive of 8 bytes, latency, against gloo",
                Case(op="send", mode="lat", provider="soft"),
                (8,),
                {"gloo": 1.0},
            ),
        ],
        __doc__,
    )
    sys.exit(1 if too_slow else status)
