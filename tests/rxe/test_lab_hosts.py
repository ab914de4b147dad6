"""`rdmatx lab run` with two hosts, rails and netem: what the commands see, and how a run ends.

Only programs of the distribution run inside; test_lab_transfer.py moves data of ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rdmatx import lab
from rdmatx.lab.boot import PACKAGE_PARENT
from tests.lanes import lane_missing
from tests.rxe.lab_command import (
    DROP,
    LAB,
    environment,
    lab_processes,
    require_lab,
    run_lab,
    start_lab,
    wait_for_line,
)

pytestmark = pytest.mark.rxe

require_lab()

TWO = ("--hosts", "2")
PINGPONG = """
command -v ibv_rc_pingpong >/dev/null || {{ echo no tool; exit 0; }}
run() {{ ibv_rc_pingpong -d rxe{rail} -g 1 -s {size} -n {rounds} -m 4096 -e -c "$@"; }}
if [ "$RDMATX_LAB_HOST" = 0 ]; then run; else sleep 0.5; run 10.0.{rail}.1; fi || exit
cd /sys/class/infiniband/rxe{rail}/ports/1/hw_counters
for name in out_of_seq_request rcvd_seq_err completer_retry_err; do echo "$name=$(cat $name)"; done
"""


def of_host(output: bytes, host: int) -> list[str]:
    """The lines that a host printed."""
    start = f"[host {host}] "
    lines = output.decode().splitlines()
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def test_two_hosts_see_each_other(folder: Path) -> None:
    script = (
        "rdma link show rxe0/1; hostname; getent hosts rdmatx-lab-0 rdmatx-lab-1; "
        "echo $RDMATX_LAB_PEERS $RDMATX_LAB_PEERS6 $RDMATX_LAB_DEVICES; "
        "cat /sys/class/infiniband/rxe0/ports/1/gids/1; "
        "cat /sys/class/net/vec0/mtu; echo $RDMATX_LAB_HOST > host-$RDMATX_LAB_HOST"
    )
    done = run_lab(folder, "sh", "-c", script, options=TWO)
    assert done.returncode == 0, done.stderr
    for host in range(2):
        text = "\n".join(of_host(done.stdout, host))
        assert "link rxe0/1 state ACTIVE" in text
        assert f"\nrdmatx-lab-{host}\n" in text
        assert re.search(r"10\.0\.0\.1 +rdmatx-lab-0\n10\.0\.0\.2 +rdmatx-lab-1\n", text)
        assert "10.0.0.1,10.0.0.2 fd00::1,fd00::2 rxe0\n" in text
        assert f"ffff:0a00:000{host + 1}\n9000" in text
        assert (folder / f"host-{host}").read_text() == f"{host}\n"


PEER = """
import os, socket, sys
me = int(os.environ["RDMATX_LAB_HOST"])
peers = os.environ[sys.argv[1]].split(",")
family = socket.AF_INET6 if ":" in peers[0] else socket.AF_INET
if me == 0:
    with socket.create_server((peers[0], 7000), family=family) as server:
        server.settimeout(20)
        with server.accept()[0] as link:
            print(link.recv(100, socket.MSG_WAITALL).decode())
else:
    for attempt in range(500):
        try:
            link = socket.create_connection((peers[0], 7000), 20)
            break
        except ConnectionRefusedError:
            import time
            time.sleep(0.02)
    with link:
        link.sendall(b"x" * 100)
"""


def test_tcp_reaches_the_other_host_by_both_families(folder: Path) -> None:
    (folder / "peer.py").write_text(PEER)
    script = "python3 peer.py RDMATX_LAB_PEERS && python3 peer.py RDMATX_LAB_PEERS6"
    done = run_lab(folder, "sh", "-c", script, options=TWO)
    assert (done.returncode, done.stderr) == (0, b"")
    assert of_host(done.stdout, 0) == ["x" * 100] * 2


def test_the_first_failure_counts_and_the_other_host_goes_on(folder: Path) -> None:
    script = 'test "$RDMATX_LAB_HOST" = 1 && exit 7; sleep 1; echo late; exit 9'
    done = run_lab(folder, "sh", "-c", script, options=TWO)
    assert done.returncode == 7
    assert of_host(done.stdout, 0) == ["late"]


def test_a_host_that_lingers_behind_a_failed_one_is_ended(folder: Path) -> None:
    script = 'test "$RDMATX_LAB_HOST" = 0 && exit 3; echo kept > file; sleep 60'
    done = run_lab(folder, "sh", "-c", script, options=(*TWO, "--linger", "1"))
    assert done.returncode == 3
    assert b"host 1 is ended: host 0 failed with status 3" in done.stderr
    assert (folder / "file").read_text() == "kept\n"


def test_a_host_that_is_powered_off_is_gone_and_the_other_goes_on(folder: Path) -> None:
    script = (
        'if [ "$RDMATX_LAB_HOST" = 1 ]; then exec python3 -c '
        "'from rdmatx.lab.power import power_off; power_off()'; fi; "
        "sleep 1; for n in $(seq 200); do echo x > /dev/udp/10.0.0.2/9; done; echo alive"
    )
    done = run_lab(folder, "bash", "-c", script, options=(*TWO, "--user", "0", "--json"))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 125
    assert b"host 1 was powered off while the command ran" in done.stderr
    assert [event for event in events if event["event"] == "exit"] == [
        {"event": "exit", "host": 1, "status": 125, "gone": True},
        {"event": "exit", "host": 0, "status": 0, "gone": False},
    ]
    assert {"event": "output", "host": 0, "stream": "stdout", "text": "alive"} in events
    assert events[-1] == {"event": "end", "status": 125, "hosts": [0, 125]}


def test_statuses_of_all_hosts_in_python(folder: Path) -> None:
    command = ["sh", "-c", "exit $((RDMATX_LAB_HOST + 4))"]
    assert lab.run_hosts(command, mem="512M", workdir=folder, timeout=40.0) == [4, 5]


def test_timeout_ends_both(folder: Path) -> None:
    done = run_lab(folder, "sh", "-c", "echo up; sleep 60", options=(*TWO, "--timeout", "4"))
    assert done.returncode == 124
    assert sorted(done.stdout.splitlines()) == [b"[host 0] up", b"[host 1] up"]


def test_interrupt_goes_to_both_commands(folder: Path) -> None:
    script = "trap 'echo caught; exit 9' INT; echo up; sleep 30 & wait"
    process = start_lab(folder, "sh", "-c", script, options=TWO)
    assert {wait_for_line(process), wait_for_line(process)} == {b"[host 0] up\n", b"[host 1] up\n"}
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 9
    assert sorted(out.splitlines()) == [b"[host 0] caught", b"[host 1] caught"]


def test_nothing_of_two_hosts_is_left_by_a_killed_runner(folder: Path) -> None:
    temporary = folder / "t"
    temporary.mkdir()
    script = "echo up; while :; do :; done"
    process = start_lab(folder, "sh", "-c", script, options=TWO, TMPDIR=str(temporary))
    assert {wait_for_line(process), wait_for_line(process)} == {b"[host 0] up\n", b"[host 1] up\n"}
    assert len(list(temporary.iterdir())) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (lab_processes(temporary) or list(temporary.iterdir())):
        time.sleep(0.05)
    assert lab_processes(temporary) == []
    assert list(temporary.iterdir()) == []


def test_netem_that_makes_no_sense_is_tcs_to_say(folder: Path) -> None:
    done = run_lab(folder, "echo", "ran", options=(*TWO, "--netem", "lose 1%"))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b'What is "lose"' in done.stderr


def test_netem_is_in_words_refused_with_one_host(folder: Path) -> None:
    done = run_lab(folder, "echo", "ran", options=("--netem", "loss 1%"))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"--netem needs --hosts 2" in done.stderr


def test_rails_of_one_host_go_down_and_come_back(folder: Path) -> None:
    script = (
        "rdma link; ip link set dm1 down; rdma link show rxe1/1; rdma link show rxe0/1; "
        "ip link set dm1 up; cat /sys/class/infiniband/rxe[01]/ports/1/gids/[12]; "
        "rdma link show rxe1/1; echo $RDMATX_LAB_DEVICES"
    )
    done = run_lab(folder, "sh", "-c", script, options=("--rails", "2", "--user", "0"))
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    states = [line.split()[1:4] for line in lines if line.startswith("link ")]
    assert states == [
        ["rxe0/1", "state", "ACTIVE"],
        ["rxe1/1", "state", "ACTIVE"],
        ["rxe1/1", "state", "DOWN"],
        ["rxe0/1", "state", "ACTIVE"],
        ["rxe1/1", "state", "ACTIVE"],
    ]
    for end in ("ffff:0a00:0001", "ffff:0a00:0101", "fd00:0000:0000:0001:0000:0000:0000:0001"):
        assert sum(line.endswith(end) for line in lines) == 1, end
    assert lines[-1] == "rxe0,rxe1"


def test_rails_reach_their_like_and_lose_nothing(folder: Path) -> None:
    script = "".join(
        f"({PINGPONG.format(rail=rail, size=65536, rounds=300)}) || exit\n" for rail in (0, 1)
    )
    done = run_lab(folder, "sh", "-c", script, options=(*TWO, "--rails", "2"))
    if b"no tool" in done.stdout:
        lane_missing("rxe", "ibv_rc_pingpong is not installed (package ibverbs-utils)")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in range(2):
        text = "\n".join(of_host(done.stdout, host))
        assert text.count("bytes in") == 2
        assert text.count("out_of_seq_request=0\nrcvd_seq_err=0") == 2


def test_netem_loses_packets_and_soft_roce_sends_them_again(folder: Path) -> None:
    script = PINGPONG.format(rail=0, size=65536, rounds=300)
    done = run_lab(folder, "sh", "-c", script, options=(*TWO, "--netem", "loss 1%"))
    if b"no tool" in done.stdout:
        lane_missing("rxe", "ibv_rc_pingpong is not installed (package ibverbs-utils)")
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(re.findall(r"(\w+)=(\d+)", "\n".join(of_host(done.stdout, 0))))
    assert int(found["out_of_seq_request"]) > 0
    assert int(found["completer_retry_err"]) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
def test_two_hosts_of_an_unprivileged_user(folder: Path) -> None:
    kernel = lab.status().kernel
    assert kernel is not None
    copy = folder / "linux"
    copy.write_bytes(kernel.read_bytes())
    copy.chmod(0o755)
    code = folder / "code"
    ignored = shutil.ignore_patterns("*.so*")
    shutil.copytree(PACKAGE_PARENT / "rdmatx", code / "rdmatx", ignore=ignored)
    own = folder / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    environment_of_user = environment(
        code, RDMATX_LAB_KERNEL=str(copy), HOME=str(own), TMPDIR="/tmp"
    )
    script = PINGPONG.format(rail=0, size=65536, rounds=100)
    done = subprocess.run(
        [*DROP, "/usr/bin/python3", *LAB[1:], *TWO, "--", "sh", "-c", script],
        cwd=own,
        capture_output=True,
        check=False,
        timeout=50,
        env=environment_of_user,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rcvd_seq_err=0" in of_host(done.stdout, 0)
