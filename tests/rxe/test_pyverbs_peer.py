"""An independent peer: our queue pair against one that pyverbs made, in both directions.

Where both ends are ours a mistake may cancel out (an immediate in the wrong byte order, the two operands
of an atomic exchanged). Here the other end is rdma-core's.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdmatx.verbs import Address, Device, LinkLayer, SendWork
from tests.conformance.ends import PATIENCE, End, all_succeeded, pattern, usable_gid_index
from tests.lanes import lane_missing

SCRIPT = Path(__file__).with_name("pyverbs_peer.py")
PYTHON = "/usr/bin/python3"
ROOM = 1 << 20
SIZES = [1, 4096, 5000, ROOM]

pytestmark = pytest.mark.rxe


class Pyverbs:
    """The process with the other queue pair; each method of its Peer is asked for by a line of JSON."""

    def __init__(self, device: str, gid_index: int) -> None:
        path = os.pathsep.join(
            filter(None, ["/usr/lib/python3/dist-packages", os.environ.get("PYTHONPATH", "")])
        )
        self._process = subprocess.Popen(
            [PYTHON, str(SCRIPT), device, str(gid_index), str(ROOM)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.told = self._answer()
        except BaseException:
            self.close()
            raise

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, answer["error"]
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        assert line, "pyverbs ended or did not answer; its error is on standard error"
        return dict(json.loads(line))

    def completion(self) -> dict[str, Any]:
        done = self("wait", seconds=PATIENCE)
        assert done["status"] == 0
        return done

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def sides(provider: str, device_name: str | None) -> Iterator[tuple[End, Pyverbs]]:
    if subprocess.run([PYTHON, "-c", "import pyverbs.device"], capture_output=True).returncode:
        lane_missing("rxe", "the system's Python has no pyverbs: apt-get install python3-pyverbs")
    with Device(device_name, provider=provider) as device:
        end = End(device, usable_gid_index(device))
        peer = None
        try:
            peer = Pyverbs(device.name, end.gid_index)
            join(end, peer)
            yield end, peer
        finally:
            end.close()
            if peer is not None:
                peer.close()


def join(end: End, peer: Pyverbs) -> None:
    own = end.address()
    port = end.device.query_port(1)
    peer(
        "connect",
        number=own.queue_pair_number,
        psn=own.packet_sequence_number,
        gid=own.gid,
        mtu={256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[port.active_mtu],
    )
    end.connect(
        Address(
            queue_pair_number=peer.told["number"],
            packet_sequence_number=peer.told["psn"],
            gid=peer.told["gid"],
            gid_index=end.gid_index,
            gid_type=own.gid_type,
            lid=own.lid,
            link_layer=LinkLayer(port.link_layer),
            mtu=port.active_mtu,
        )
    )


@pytest.mark.parametrize("nbytes", SIZES)
def test_send_to_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    peer("receive", offset=0, nbytes=nbytes)
    end.send(end.memory(pattern(nbytes)))
    all_succeeded(end.sent())
    assert peer.completion()["bytes"] == nbytes
    assert peer("content", nbytes=nbytes)["content"] == pattern(nbytes).hex()


@pytest.mark.parametrize("nbytes", SIZES)
def test_receive_from_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    target = end.memory(nbytes)
    end.receive(target)
    peer("fill", hex_content=pattern(nbytes).hex())
    peer("post", operation="send", offset=0, nbytes=nbytes)
    peer.completion()
    assert end.received()[0].nbytes == nbytes
    assert bytes(target) == pattern(nbytes)


def test_immediate_both_ways(sides: tuple[End, Pyverbs]) -> None:
    """The immediate is one number on both sides: pyverbs, like verbs itself, has it in network order."""
    end, peer = sides
    value = 0x01020304
    swapped = int.from_bytes(value.to_bytes(4, "big"), "little")
    peer("receive", offset=0, nbytes=8)
    end.send(end.memory(8), immediate=value)
    all_succeeded(end.sent())
    assert peer.completion()["imm"] == swapped
    end.receive(end.memory(8))
    peer("post", operation="send_imm", offset=0, nbytes=8, imm=swapped)
    assert end.received()[0].immediate == value
    peer.completion()


@pytest.mark.parametrize("nbytes", SIZES)
def test_write_to_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    work = SendWork.write(peer.told["address"], peer.told["key"]).signaled()
    end.qp.post_send(work.add(end.memory(pattern(nbytes, 2)).region))
    all_succeeded(end.sent())
    assert peer("content", nbytes=nbytes)["content"] == pattern(nbytes, 2).hex()


@pytest.mark.parametrize("nbytes", SIZES)
def test_written_by_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    target = end.memory(nbytes)
    peer("fill", hex_content=pattern(nbytes, 3).hex())
    peer("post", operation="write", offset=0, nbytes=nbytes, address=target.address, key=target.key)
    peer.completion()
    assert bytes(target) == pattern(nbytes, 3)


def test_write_with_immediate_both_ways(sides: tuple[End, Pyverbs]) -> None:
    end, peer = sides
    peer("receive", offset=512, nbytes=8)
    work = SendWork.write(peer.told["address"], peer.told["key"]).immediate(1).signaled()
    end.qp.post_send(work.add(end.memory(b"notified").region))
    all_succeeded(end.sent())
    assert peer.completion()["imm"] == 0x01000000
    assert bytes.fromhex(peer("content", nbytes=8)["content"]) == b"notified"
    target = end.memory(8)
    end.receive()
    peer(
        "post",
        operation="write_imm",
        offset=0,
        nbytes=8,
        address=target.address,
        key=target.key,
        imm=0x01000000,
    )
    peer.completion()
    assert end.received()[0].immediate == 1
    assert bytes(target) == b"notified"


@pytest.mark.parametrize("nbytes", SIZES)
def test_read_from_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    peer("fill", hex_content=pattern(nbytes, 4).hex())
    target = end.memory(nbytes)
    work = SendWork.read(peer.told["address"], peer.told["key"]).signaled()
    end.qp.post_send(work.add(target.region))
    all_succeeded(end.sent())
    assert bytes(target) == pattern(nbytes, 4)


@pytest.mark.parametrize("nbytes", SIZES)
def test_read_by_pyverbs(sides: tuple[End, Pyverbs], nbytes: int) -> None:
    end, peer = sides
    source = end.memory(pattern(nbytes, 5))
    peer("post", operation="read", offset=0, nbytes=nbytes, address=source.address, key=source.key)
    peer.completion()
    assert peer("content", nbytes=nbytes)["content"] == pattern(nbytes, 5).hex()


def word(content: bytes | bytearray) -> int:
    return int.from_bytes(content[:8], "little")


def test_our_atomics_on_pyverbs(sides: tuple[End, Pyverbs]) -> None:
    end, peer = sides
    address, key, result = peer.told["address"], peer.told["key"], end.memory(8)
    peer("fill", hex_content=(40).to_bytes(8, "little").hex())
    end.qp.post_send(SendWork.fetch_add(address, key, 2).add(result.region).signaled())
    all_succeeded(end.sent())
    assert word(result.content) == 40
    end.qp.post_send(SendWork.compare_swap(address, key, 42, 7).add(result.region).signaled())
    all_succeeded(end.sent())
    assert word(result.content) == 42
    assert word(bytes.fromhex(peer("content", nbytes=8)["content"])) == 7


def test_atomics_of_pyverbs_on_ours(sides: tuple[End, Pyverbs]) -> None:
    end, peer = sides
    target = end.memory((40).to_bytes(8, "little"))
    where = {"offset": 0, "nbytes": 8, "address": target.address, "key": target.key}
    peer("post", operation="fetch_add", first=2, **where)
    peer.completion()
    assert word(bytes.fromhex(peer("content", nbytes=8)["content"])) == 40
    peer("post", operation="compare_swap", first=42, second=7, **where)
    peer.completion()
    assert word(bytes.fromhex(peer("content", nbytes=8)["content"])) == 42
    assert word(target.content) == 7
