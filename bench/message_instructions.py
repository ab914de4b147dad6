"""How many instructions does a small message take, and where? (callgrind; `apt-get install valgrind`)

    python bench/message_instructions.py [--bytes 8] [--messages 5000] [--json]

Two processes on the software HCA, memory registered before, 64 messages under way. One of the two runs
under callgrind, first the sender (isend and wait), then the receiver (irecv and wait). Instructions do not
depend on what else the machine does. Waiting is not in them: under callgrind a process is the slower of the
two.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path

WINDOW = 64
SIDES = ("sender", "receiver")


def side(name: str, nbytes: int, messages: int, address: str) -> None:
    """One of the two processes: a round to warm up, and one that is counted."""
    import os

    import rdmatx

    counted = "valgrind" in os.environ.get("LD_PRELOAD", "")
    with rdmatx.Context(provider="soft") as context:
        if name == "receiver":
            with context.listen("127.0.0.1:0") as listener:
                print(listener.address, flush=True)
                peer = listener.accept(timeout=60)
        else:
            peer = context.connect(address, timeout=60)
        start = peer.isend if name == "sender" else peer.irecv
        flag = bytearray(1)

        def meet() -> None:
            peer.isend(flag, tag=1)
            peer.recv(flag, tag=1, timeout=120)

        def count(on: str) -> None:
            if counted:
                command = ["callgrind_control", "-i", on, str(os.getpid())]
                quiet = subprocess.DEVNULL
                subprocess.run(command, stdout=quiet, stderr=quiet, check=True)

        with peer, context.register(bytearray(max(nbytes, 1)), access="rw") as region:
            for round_counted in (False, True):
                meet()
                if round_counted:
                    count("on")
                meet()
                pending = deque(start(region) for _ in range(WINDOW))
                for _ in range(messages - WINDOW):
                    pending.popleft().wait()
                    pending.append(start(region))
                while pending:
                    pending.popleft().wait()
                if round_counted:
                    count("off")
                meet()


def layer_of(file: str) -> str:
    """Whose code a source file is."""
    if own := re.search(r"(?:^|/)csrc/(\w+)/", file):
        return own.group(1)
    if "pybind11" in file:
        return "pybind11"
    if "/include/c++/" in file:
        return "C++ library"
    if "Python" in file or "python" in file:
        return "Python"
    return "C library and others"


def instructions_of(name: str, nbytes: int, messages: int) -> Counter[str]:
    """Instructions a message, by layer, of the side of this name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        callgrind += [f"--callgrind-out-file={out}", "--log-file=/dev/null"]

        def command(other: str, address: str) -> list[str]:
            prefix = callgrind if other == name else []
            own = [sys.executable, __file__, "--side", other, "--address", address]
            return [*prefix, *own, "--bytes", str(nbytes), "--messages", str(messages)]

        first = subprocess.Popen(command("receiver", ""), stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        try:
            address = first.stdout.readline().strip()
            subprocess.run(command("sender", address), check=True, timeout=300)
            if first.wait(timeout=300) != 0:
                raise SystemExit("the receiving process failed")
        finally:
            first.kill()
            first.wait()
        annotate = ["callgrind_annotate", "--threshold=100", "--auto=no", str(out)]
        report = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    total: Counter[str] = Counter()
    for count, file in re.findall(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S+?):", report, re.M):
        total[layer_of(file)] += int(count.replace(",", ""))
    return Counter({layer: round(count / messages) for layer, count in total.items()})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.messages < WINDOW:
        parser.error(f"--messages has to be at least {WINDOW}")
    if arguments.side:
        side(arguments.side, arguments.bytes, arguments.messages, arguments.address)
        return 0
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed: apt-get install valgrind")
    for name in SIDES:
        counts = instructions_of(name, arguments.bytes, arguments.messages)
        total = sum(counts.values())
        if arguments.json:
            record = {"bench": "message_instructions", "side": name, "bytes": arguments.bytes}
            print(json.dumps({**record, "instructions": total, "layers": dict(counts)}))
            continue
        print(f"{name}: {total:,} instructions a message of {arguments.bytes} bytes")
        for layer, count in counts.most_common():
            print(f"{count:8,}  {layer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
