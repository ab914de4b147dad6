"""The shared secret: who gets in, who does not, and what one in between can do."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import rdmatx
from rdmatx import _C, errors
from tests.launch import ROOT, TIME_SCALE, Rank, launch
from tests.multiprocess import bootstrap_records as records
from tests.multiprocess.bootstrap_records import in_between, knock, receive_record, record
from tests.multiprocess.cli_processes import Receiving, make_file, run
from tests.multiprocess.conftest import PATIENCE

SECRET = "correct horse battery staple"
OTHER = "correct horse battery stable"


def works(near: rdmatx.Connection, far: rdmatx.Connection) -> None:
    near.send(b"fine")
    assert far.recv(bytearray(4)) == 4
    far.send(b"too")
    assert near.recv(bytearray(4)) == 3


def lets_in(context: rdmatx.Context, listener: rdmatx.Listener, secret: str | bytes) -> None:
    with (
        context.connect(listener.address, secret=secret) as near,
        listener.accept() as far,
    ):
        works(near, far)


def nobody_came(listener: rdmatx.Listener) -> None:
    with pytest.raises(errors.TimeoutError):
        listener.accept(timeout=0.05)


def wait_for_stat(listener: rdmatx.Listener, name: str, count: int) -> None:
    """The listener's thread counts a moment after the other side has been told."""
    done = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if listener.stats()[name] >= count:
            break
        done.wait(0.01)
    assert listener.stats()[name] == count


def test_both_sides_with_one_secret(context: rdmatx.Context) -> None:
    with context.listen(secret=SECRET) as listener:
        lets_in(context, listener, SECRET)
        lets_in(context, listener, SECRET.encode())
        assert listener.stats() == {
            "accepted": 2,
            "refused": 0,
            "failed_authentication": 0,
            "timed_out": 0,
            "shut_out": 0,
            "gave_up": 0,
            "half_open": 0,
            "waiting": 0,
        }


def test_bytes_of_any_value(context: rdmatx.Context) -> None:
    secret = bytes(range(256))
    with context.listen(secret=secret) as listener:
        lets_in(context, listener, secret)
        with pytest.raises(errors.AuthenticationError):
            context.connect(listener.address, secret=secret[:-1])


def with_environment(rank: Rank, provider: str, device: str | None) -> str:
    """Rank 0 listens; all takes its secret from the environment."""
    with rdmatx.Context(device, provider, timeout=PATIENCE) as context:
        if rank.index == 0:
            with context.listen() as listener:
                rank.send(1, listener.address)
                with listener.accept() as peer:
                    assert peer.recv(bytearray(5)) == 5
                return rank.receive(1)
        address = rank.receive(0)
        with pytest.raises(errors.AuthenticationError):
            context.connect(address, secret=OTHER)
        with context.connect(address) as peer:
            peer.send(b"hello")
        rank.send(0, "done")
        return "done"


def test_the_environment_gives_the_secret(provider: str, device_name: str | None) -> None:
    both = launch(with_environment, provider, device_name, environment={"RDMATX_SECRET": SECRET})
    assert both == ["done", "done"]


def test_an_argument_stands_before_the_environment(
    context: rdmatx.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATX_SECRET", SECRET)
    with context.listen() as from_environment, context.listen(secret=OTHER) as explicit:
        lets_in(context, from_environment, SECRET)
        with pytest.raises(errors.AuthenticationError):
            context.connect(explicit.address)
        monkeypatch.setenv("RDMATX_SECRET", "")
        with pytest.raises(errors.AuthenticationError):
            context.connect(from_environment.address)


@pytest.mark.parametrize(
    ("listens", "connects", "words"),
    [
        (SECRET, OTHER, "is not this side's"),
        (SECRET, None, "the connecting side has none"),
        (None, SECRET, "the listener has none"),
    ],
)
def test_secrets_that_do_not_match(
    context: rdmatx.Context,
    monkeypatch: pytest.MonkeyPatch,
    listens: str | None,
    connects: str | None,
    words: str,
) -> None:
    monkeypatch.delenv("RDMATX_SECRET", raising=False)
    with context.listen(secret=listens) as listener:
        before = _C.live_objects()
        with pytest.raises(errors.AuthenticationError, match=words) as caught:
            context.connect(listener.address, secret=connects)
        assert caught.value.peer == listener.address
        assert "RDMATX_SECRET" in str(caught.value)
        assert SECRET not in str(caught.value)
        assert OTHER not in str(caught.value)
        restored = pickle.loads(pickle.dumps(caught.value))
        assert (type(restored), restored.peer) == (errors.AuthenticationError, listener.address)
        assert isinstance(caught.value, ConnectionError)
        del caught
        wait_for_stat(listener, "failed_authentication", 1)
        nobody_came(listener)
        assert _C.live_objects() == before
        if listens is not None:
            lets_in(context, listener, listens)


@pytest.mark.parametrize("wrong", ["", b"", 5, ["x"], "\udcff"])
def test_what_is_no_secret(context: rdmatx.Context, wrong: object) -> None:
    with pytest.raises(errors.UsageError, match="secret"):
        context.listen(secret=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="secret"):
        context.connect("127.0.0.1:1", secret=wrong)  # type: ignore[arg-type]


# ---- what is told, and when ----------------------------------------------------------------------


def test_nothing_is_told_before_the_proof(context: rdmatx.Context) -> None:
    with (
        context.listen(secret=SECRET) as listener,
        in_between(listener.address) as proxy,
        context.connect(proxy.address, secret=SECRET) as near,
        listener.accept() as far,
    ):
        works(near, far)
        out, back = proxy.of("out"), proxy.of("in")
        assert [records.kind_of(whole) for whole in out] == [
            records.GREETING,
            records.HELLO,
            records.READY,
        ]
        assert [records.kind_of(whole) for whole in back] == [records.CHALLENGE, records.ACCEPT]
        # A nonce and nothing else; a nonce and a proof and nothing else.
        assert len(out[0]) == records.HEAD.size + 32
        assert len(back[0]) == records.HEAD.size + 64
        for whole in (*out, *back):
            assert SECRET.encode() not in whole


def test_a_connector_tells_nothing_to_a_wrong_listener(context: rdmatx.Context) -> None:
    with context.listen(secret=OTHER) as listener, in_between(listener.address) as proxy:
        with pytest.raises(errors.AuthenticationError):
            context.connect(proxy.address, secret=SECRET)
        wait_for_stat(listener, "failed_authentication", 1)
        assert [records.kind_of(whole) for whole in proxy.of("out")] == [
            records.GREETING,
            records.DENIED,
        ]


def test_nothing_is_made_for_strangers(context: rdmatx.Context) -> None:
    """Neither for who says nothing, nor for who greets, nor for who says hello without the proof."""
    with context.listen(secret=SECRET) as listener, ExitStack() as strangers:
        before = Counter(_C.live_objects())
        for words in (b"", record(records.GREETING, bytes(32))):
            for _ in range(20):
                stranger = strangers.enter_context(knock(listener.address))
                stranger.sendall(words)
                if words:
                    assert records.kind_of(receive_record(stranger)) == records.CHALLENGE
        with knock(listener.address) as liar:
            liar.sendall(record(records.GREETING, bytes(32)))
            receive_record(liar)
            liar.sendall(record(records.HELLO, bytes(200)))
            assert records.kind_of(receive_record(liar)) == records.DENIED
        wait_for_stat(listener, "failed_authentication", 1)
        assert Counter(_C.live_objects()) == before


# ---- replay, reflection, and one in between ------------------------------------------------------


def test_a_recorded_handshake_is_refused(context: rdmatx.Context) -> None:
    with context.listen(secret=SECRET) as listener:
        with (
            in_between(listener.address) as proxy,
            context.connect(proxy.address, secret=SECRET) as near,
            listener.accept() as far,
        ):
            works(near, far)
        greeting, *later = proxy.of("out")[:3]
        with knock(listener.address) as again:
            again.sendall(greeting)
            challenge = receive_record(again)
            assert records.kind_of(challenge) == records.CHALLENGE
            assert challenge != proxy.of("in")[0]
            again.sendall(b"".join(later))
            assert records.kind_of(receive_record(again)) == records.DENIED
        wait_for_stat(listener, "failed_authentication", 1)
        assert listener.stats()["accepted"] == 1
        nobody_came(listener)
    # The other way round: a listener that says what the real one said.
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        door.settimeout(PATIENCE)

        def say_again() -> None:
            stream, _ = door.accept()
            with stream:
                stream.settimeout(PATIENCE)
                receive_record(stream)
                stream.sendall(b"".join(proxy.of("in")))
                answers.append(receive_record(stream))

        answers: list[bytes] = []
        thread = threading.Thread(target=say_again)
        thread.start()
        with pytest.raises(errors.AuthenticationError, match="not this side's"):
            context.connect(f"127.0.0.1:{door.getsockname()[1]}", secret=SECRET)
        thread.join()
        assert records.kind_of(answers[0]) == records.DENIED


def test_a_proof_said_back_proves_nothing(context: rdmatx.Context) -> None:
    """The listener's proof in the place of the connector's seal."""
    with context.listen(secret=SECRET) as listener:
        with knock(listener.address) as mirror:
            mirror.sendall(record(records.GREETING, bytes(32)))
            proof = receive_record(mirror)[-32:]
            mirror.sendall(record(records.HELLO, bytes(200) + proof))
            assert records.kind_of(receive_record(mirror)) == records.DENIED
        wait_for_stat(listener, "failed_authentication", 1)
        nobody_came(listener)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize(("direction", "number"), [("out", 0), ("in", 0), ("out", 1), ("in", 1)])
def test_an_altered_handshake_does_not_connect(
    context: rdmatx.Context, direction: str, number: int, place: str
) -> None:
    """A bit of the greeting, the challenge, the hello (with its queue pair) or the accept."""

    def alter(way: str, count: int, whole: bytes) -> bytes:
        if (way, count) != (direction, number):
            return whole
        changed = bytearray(whole)
        changed[records.HEAD.size if place == "first" else -1] ^= 1
        return bytes(changed)

    with context.listen(secret=SECRET) as listener, in_between(listener.address, alter) as proxy:
        with pytest.raises(errors.AuthenticationError) as caught:
            context.connect(proxy.address, secret=SECRET)
        assert caught.value.peer == proxy.address
        del caught
        # Of an altered accept the connector is the one to notice: it hangs up.
        noticed = "gave_up" if (direction, number) == ("in", 1) else "failed_authentication"
        wait_for_stat(listener, noticed, 1)
        assert listener.stats()["accepted"] == 0
        nobody_came(listener)


def test_the_last_record_of_a_handshake_is_sealed_too(context: rdmatx.Context) -> None:
    def alter(way: str, count: int, whole: bytes) -> bytes:
        return record(records.READY, b"\0\0") if (way, count) == ("out", 2) else whole

    with (
        context.listen(secret=SECRET) as listener,
        in_between(listener.address, alter) as proxy,
        context.connect(proxy.address, secret=SECRET) as near,
    ):
        wait_for_stat(listener, "failed_authentication", 1)
        nobody_came(listener)
        with pytest.raises(errors.PeerLostError):
            near.recv(bytearray(1))


@pytest.mark.parametrize("kind", [records.GOODBYE, records.FAILED])
def test_nobody_in_between_ends_a_connection_in_the_peers_name(
    context: rdmatx.Context, kind: int
) -> None:
    forged = record(kind, b"\x06\0forged")
    with (
        context.listen(secret=SECRET) as listener,
        closing(socket.create_server(("127.0.0.1", 0))) as door,
    ):
        door.settimeout(PATIENCE)
        address = f"127.0.0.1:{door.getsockname()[1]}"
        made: list[rdmatx.Connection] = []
        connecting = threading.Thread(
            target=lambda: made.append(context.connect(address, secret=SECRET))
        )
        connecting.start()
        stream, _ = door.accept()
        with stream, knock(listener.address) as far_end:
            stream.settimeout(PATIENCE)
            for source, sink in ((stream, far_end), (far_end, stream)) * 2:
                sink.sendall(receive_record(source))
            far_end.sendall(receive_record(stream))
            connecting.join()
            with made[0] as near, listener.accept() as far:
                works(near, far)
                stream.sendall(forged)
                with pytest.raises(errors.PeerLostError, match="seal is wrong") as caught:
                    near.recv(bytearray(1))
                assert "forged" not in str(caught.value)
                del caught


@pytest.mark.parametrize("answer", [records.ACCEPT, records.READY, records.REFUSE, records.DENIED])
def test_nobody_in_between_talks_a_side_out_of_its_secret(
    context: rdmatx.Context, answer: int
) -> None:
    """Whatever comes in the place of the challenge: the connector says nothing more."""

    def alter(way: str, count: int, whole: bytes) -> bytes:
        return record(answer, b"\x02\0no") if (way, count) == ("in", 0) else whole

    with context.listen(secret=SECRET) as listener, in_between(listener.address, alter) as proxy:
        with pytest.raises((errors.AuthenticationError, errors.UnavailableError)):
            context.connect(proxy.address, secret=SECRET)
        assert [records.kind_of(whole) for whole in proxy.of("out")] == [records.GREETING]
        wait_for_stat(listener, "gave_up", 1)


# ---- what people see -----------------------------------------------------------------------------

CHATTY = """
import os, sys, traceback
import rdmatx
from rdmatx import errors
secret = sys.stdin.readline().strip()
with rdmatx.Context(provider="soft") as context, context.listen(secret=secret) as listener:
    for address, other in ((listener.address, secret[::-1]), (5, secret), (None, secret)):
        try:
            context.connect(address, secret=other)
        except Exception:
            traceback.print_exc()
    with context.connect(listener.address, secret=secret) as near, listener.accept() as far:
        print(context, context.describe(), listener, near, near.path, near.peer, listener.stats())
"""


def python(script: str, words: str = "", **environment: str) -> str:
    """Runs a script and returns all it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    environment.pop("RDMATX_SECRET", None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=words,
        capture_output=True,
        text=True,
        timeout=50 * TIME_SCALE,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.soft_only
def test_the_secret_is_never_printed() -> None:
    secret = "hush-0123456789-hush"
    text = python(CHATTY, secret + "\n", RDMATX_LOG="debug")
    assert "AuthenticationError" in text
    assert "authentication of 127.0.0.1" in text
    assert "TypeError" in text
    for form in (secret, secret[::-1], secret.encode().hex()):
        assert form not in text


LISTENING = """
import sys
import rdmatx
with rdmatx.Context(provider="soft") as context:
    for address in sys.stdin.readline().split():
        context.listen(address, {secret!r}).close()
"""


@pytest.mark.soft_only
@pytest.mark.parametrize(
    ("addresses", "secret", "warned"),
    [
        ("127.0.0.1:0 :0 127.3.2.1:0", None, None),
        ("0.0.0.0:0 0.0.0.0:0", None, "without a secret"),
        ("0.0.0.0:0", "0123456789abcdef", None),
        ("127.0.0.1:0 127.0.0.1:0", "0123456789abcde", "fewer than 16 bytes"),
    ],
)
def test_warnings_come_once_and_say_what_to_do(
    addresses: str, secret: str | None, warned: str | None
) -> None:
    text = python(LISTENING.format(secret=secret), addresses + "\n")
    warnings = [line for line in text.splitlines() if "rdmatx warning" in line]
    if warned is None:
        assert warnings == []
        return
    assert len(warnings) == 1
    assert warned in warnings[0]
    assert "openssl rand -hex 32" in warnings[0]


def test_files_with_a_secret(tmp_path: Path, provider: str) -> None:
    """The command line takes it from the environment alone."""
    path = make_file(tmp_path / "weights.bin", 100_000)
    out = tmp_path / "out"
    right = {**os.environ, "RDMATX_SECRET": SECRET}
    wrong = {**os.environ, "RDMATX_SECRET": OTHER}
    with Receiving(out, provider, "--once", env=right) as receiver:
        refused = run("send", path, receiver.address, "--provider", provider, env=wrong)
        assert refused.returncode != 0
        assert "RDMATX_SECRET" in refused.stderr
        assert OTHER not in refused.stderr
        sent = run("send", path, receiver.address, "--provider", provider, env=right)
        assert sent.returncode == 0, sent.stderr
        status, _, words = receiver.finish()
    assert status == 0, words
    assert (out / path.name).read_bytes() == path.read_bytes()
