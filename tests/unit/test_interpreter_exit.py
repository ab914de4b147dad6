"""How an interpreter ends that still uses rdmatx: with the status it asked for, silently, and soon."""

from __future__ import annotations

import pytest

from tests.shutdown import run_script

pytestmark = pytest.mark.soft

# A connected pair within one process, on the software HCA.
PAIR = """
import os, sys, threading, time
import rdmatx
from rdmatx import errors
context = rdmatx.Context(provider="soft")
listener = context.listen("127.0.0.1:0")
connection = context.connect(listener.address, timeout=10.0)
peer = listener.accept(timeout=10.0)
"""


def test_nothing_closed() -> None:
    run_script(PAIR).clean()


def test_nothing_closed_and_verbs_objects_open() -> None:
    run_script(
        """
        from rdmatx.verbs import *
        device = Device(provider="soft")
        domain = ProtectionDomain(device)
        queue = CompletionQueue(device, 16, channel=CompletionChannel(device))
        pair = QueuePair(domain, queue)
        region = MemoryRegion(domain, bytearray(4096))
        """
    ).clean()


def test_everything_closed() -> None:
    run_script(
        PAIR + "connection.close(); peer.close(); listener.close(); context.close()\n"
    ).clean()


def test_pending_operations() -> None:
    """Receives that nothing will ever match, and a send nobody receives."""
    run_script(
        PAIR
        + "pending = [peer.irecv(bytearray(64), tag=n) for n in range(5)]\n"
        + "sent = connection.isend(bytes(1 << 20), tag=99)\n"
    ).clean()


def test_after_a_transfer() -> None:
    run_script(
        PAIR
        + "work = peer.irecv(memory := bytearray(1 << 20))\n"
        + "connection.send(bytes(1 << 20), timeout=10.0)\nwork.wait(timeout=10.0)\nprint(len(memory))\n"
    ).clean(stdout="1048576\n")


@pytest.mark.parametrize("daemon", [True, False])
def test_thread_blocked_in_recv(daemon: bool) -> None:
    """A daemon thread that waits for ever is left behind; one that is not is waited for, and has a time
    limit."""
    wait = "peer.recv(bytearray(8), timeout=None if daemon else 0.5)"
    run_script(
        PAIR
        + f"daemon = {daemon}\n"
        + "def receive():\n"
        + "    try:\n"
        + f"        {wait}\n"
        + "    except (errors.TimeoutError, errors.ClosedError):\n"
        + "        pass\n"
        + "threading.Thread(target=receive, daemon=daemon).start()\n"
        + "time.sleep(0.2)\n"
    ).clean()


def test_daemon_threads_in_the_middle_of_transfers() -> None:
    run_script(
        PAIR
        + "def forever(work):\n"
        + "    try:\n"
        + "        while True: work()\n"
        + "    except errors.Error:\n"
        + "        pass\n"
        + "memory, payload = bytearray(4096), bytes(4096)\n"
        + "for work in (lambda: connection.send(payload), lambda: peer.recv(memory)):\n"
        + "    threading.Thread(target=forever, args=(work,), daemon=True).start()\n"
        + "time.sleep(0.3)\n"
    ).clean()


@pytest.mark.parametrize("status", [0, 3])
def test_sys_exit_in_the_middle(status: int) -> None:
    run_script(PAIR + f"work = peer.irecv(bytearray(8))\nsys.exit({status})\n").clean(status=status)


@pytest.mark.parametrize("status", [0, 5])
def test_os_exit(status: int) -> None:
    run_script(PAIR + f"work = peer.irecv(bytearray(8))\nos._exit({status})\n").clean(status=status)


def test_exception_nobody_catches() -> None:
    """The one message on standard error is Python's own traceback."""
    ended = run_script(PAIR + "work = peer.irecv(bytearray(8))\nraise KeyError('mine')\n")
    assert ended.status == 1
    assert ended.stderr.startswith("Traceback (most recent call last)")
    assert ended.stderr.endswith("KeyError: 'mine'\n")
    assert "rdmatx" not in ended.stderr


def test_reference_cycle() -> None:
    """Objects that only the collector at the very end would find."""
    run_script(
        PAIR
        + "holder = [context, connection, peer, listener]\n"
        + "holder.append(holder)\n"
        + "del context, connection, peer, listener\n"
    ).clean()


def test_used_at_exit() -> None:
    """An atexit function of the user's, registered before the import, may find everything closed but no
    crash."""
    run_script(
        "import atexit\n"
        "def last():\n"
        "    try:\n"
        "        connection.send(b'late', timeout=1.0)\n"
        "    except (errors.Error, OSError) as error:\n"
        "        print(type(error).__name__)\n"
        "atexit.register(last)\n" + PAIR
    ).clean()


def test_forked_child_exits() -> None:
    """A forked child that does not touch rdmatx ends well, and the parent's connection lives on."""
    run_script(
        PAIR
        + "child = os.fork()\n"
        + "if child == 0:\n"
        + "    sys.exit(0)\n"
        + "assert os.waitpid(child, 0)[1] == 0\n"
        + "work = peer.irecv(memory := bytearray(5))\n"
        + "connection.send(b'after', timeout=10.0)\n"
        + "work.wait(timeout=10.0)\n"
        + "print(memory.decode())\n"
    ).clean(stdout="after\n")


def test_forked_child_may_not_use_the_parents_connection() -> None:
    """The child gets an error that says so; the parent's connection is not harmed."""
    ended = run_script(
        PAIR
        + "child = os.fork()\n"
        + "if child == 0:\n"
        + "    try:\n"
        + "        connection.send(b'x', timeout=2.0)\n"
        + "    except errors.Error as error:\n"
        + "        print('fork' in str(error), flush=True)\n"
        + "    os._exit(0)\n"
        + "assert os.waitpid(child, 0)[1] == 0\n"
        + "work = peer.irecv(memory := bytearray(5))\n"
        + "connection.send(b'after', timeout=10.0)\n"
        + "work.wait(timeout=10.0)\n"
        + "print(memory.decode())\n"
    )
    ended.clean(stdout="True\nafter\n")


def test_interrupted_wait() -> None:
    """Ctrl-C ends a blocking call within moments, as KeyboardInterrupt."""
    run_script(
        PAIR
        + "import signal\n"
        + "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        + "try:\n"
        + "    peer.recv(bytearray(8), timeout=15.0)\n"
        + "except KeyboardInterrupt:\n"
        + "    print('interrupted')\n"
    ).clean(stdout="interrupted\n")


def test_child_with_a_context_of_its_own() -> None:
    """A spawned child makes its own context while the parent has one."""
    run_script(
        """
        import subprocess, sys, rdmatx
        context = rdmatx.Context(provider="soft")
        script = "import rdmatx; rdmatx.Context(provider='soft')"
        assert subprocess.run([sys.executable, "-c", script]).returncode == 0
        """
    ).clean()
