"""How do send and receive between two processes of one host compare with the ways and libraries there
are?"""

import sys

from harness import Question, ask

from rdmatx.cli.bench.case import Case

KIB, MIB = 1 << 10, 1 << 20
# Of the ways to move bytes without a protocol, the best included.
RAW = {"cma": 0.90, "ring": 0.90, "split": 0.90}
# No slower than the libraries that do nothing else.
EQUAL = {"mpi": 1.0, "ucx": 1.0}

if __name__ == "__main__":
    sys.exit(
        ask(
            [
                Question(
                    "send and receive, bandwidth, against gloo",
                    Case(op="send", provider="soft"),
                    (64 * KIB, MIB, 16 * MIB, 64 * MIB),
                    {"gloo": 3.0},
                ),
                Question(
                    "send and receive, bandwidth, against copies without a protocol",
                    Case(op="send", provider="soft"),
                    (64 * KIB, MIB, 16 * MIB, 64 * MIB),
                    RAW,
                ),
                Question(
                    "send and receive of 8 bytes, latency, against gloo, UCX and NIXL",
                    Case(op="send", mode="lat", provider="soft"),
                    (8,),
                    {"gloo": 10.0, "ucx": 2.0, "nixl": 2.0},
                ),
                Question(
                    "send and receive, bandwidth, against Open MPI and UCX",
                    Case(op="send", provider="soft"),
                    (
                        *(4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB),
                        *(MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB),
                    ),
                    EQUAL,
                ),
            ],
            __doc__,
        )
    )
