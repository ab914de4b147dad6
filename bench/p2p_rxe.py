"""Over soft-RoCE: do we keep up with perftest on the same device?

Needs an RDMA device of the system; on a machine without one: rdmatx lab run -- python bench/p2p_rxe.py
"""

import sys

from harness import Question, ask

from rdmatx.cli.bench.case import Case

KIB, MIB = 1 << 10, 1 << 20

if __name__ == "__main__":
    sys.exit(
        ask(
            [
                Question(
                    "write, bandwidth, against ib_write_bw",
                    Case(op="write", provider="system"),
                    (64 * KIB, MIB),
                    {"perftest": 0.95},
                ),
            ],
            __doc__,
        )
    )
