"""Are one-sided writes on one host as fast as the limits: the kernel's one copy, and memcpy?"""

import sys

from harness import Question, ask

from rdmatx.cli.bench.case import Case

MIB = 1 << 20
SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)

if __name__ == "__main__":
    sys.exit(
        ask(
            [
                Question(
                    "write into ordinary memory, 4 KiB pages, against process_vm_writev",
                    Case(op="write", provider="soft"),
                    SIZES,
                    {"cma": 0.90},
                ),
                Question(
                    "write into ordinary memory, 2 MiB pages, against process_vm_writev",
                    Case(op="write", provider="soft", huge=True),
                    SIZES,
                    {"cma": 0.90},
                ),
                Question(
                    "write into rdmatx.empty memory, against memcpy",
                    Case(op="write", provider="soft", memory="empty"),
                    SIZES,
                    {"memcpy": 0.90},
                ),
            ],
            __doc__,
        )
    )
