"""How much faster than gloo are send and receive between two processes of one host?"""

import sys

from harness import Question, ask

from rdmatx.cli.bench.case import Case

KIB, MIB = 1 << 10, 1 << 20

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
                    "send and receive of 8 bytes, latency, against gloo",
                    Case(op="send", mode="lat", provider="soft"),
                    (8,),
                    {"gloo": 10.0},
                ),
            ],
            __doc__,
        )
    )
