"""Starts the command inside the guest and carries its streams over the channel."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import selectors
import signal
import struct
import termios
import tty
from typing import Any

from rdmatx.lab import frames

CHUNK = 65536


class Command:
    """The one command of this guest. Owns its pipes; used by process 1 alone."""

    def __init__(self, spec: dict[str, Any], channel: int) -> None:
        self._spec = spec
        self._channel = channel
        self._decoder = frames.Decoder()
        self._selector = selectors.DefaultSelector()
        self._pid = -1
        self._status: int | None = None
        self._kinds: dict[int, int] = {}  # our end of an output stream: OUTPUT or ERROR
        self._terminal = -1  # our end of the pseudo-terminal, where there is one
        self._input = -1  # our end of stdin
        self._waiting = bytearray()  # stdin that the command has not taken
        self._owed = 0  # bytes of it that no TAKEN has told of
        self._input_ended = False

    def run(self) -> int:
        """Runs the command, when START comes, to its end; returns its status as a shell has it."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)
        while self._status is None:
            for key, ready in self._selector.select():
                if key.fd == self._channel:
                    for kind, payload in self._decoder.feed(os.read(self._channel, CHUNK)):
                        self._obey(kind, payload)
                elif key.fd == wake_read:
                    os.read(wake_read, CHUNK)
                    self._reap()
                if key.fd in self._kinds and ready & selectors.EVENT_READ:
                    self._forward(key.fd)
                if key.fd == self._input and ready & selectors.EVENT_WRITE:
                    self._push_input()
        end_others()
        self._drain()
        return self._status

    def _start(self) -> None:
        """Forks; the child becomes the command, the parent keeps the other ends."""
        spec = self._spec
        ends: dict[int, int] = {}
        if spec["terminal"]:
            self._terminal, slave = os.openpty()
            os.fchown(slave, spec["uid"], -1)
            if not spec["interactive"]:
                tty.setraw(slave)
            self._resize(*spec["window"])
            self._watch(self._terminal, frames.OUTPUT if 1 in spec["terminal"] else frames.ERROR)
            ends = {number: slave for number in spec["terminal"]}
        for number, kind in ((1, frames.OUTPUT), (2, frames.ERROR)):
            if number not in ends:
                ours, ends[number] = os.pipe()
                self._watch(ours, kind)
        if 0 in ends:
            self._input = self._terminal
        elif spec["input"]:
            ends[0], self._input = os.pipe()
            os.set_blocking(self._input, False)
        else:
            ends[0] = os.open("/dev/null", os.O_RDONLY)
        self._pid = os.fork()
        if self._pid == 0:
            _become(spec, ends)
        for end in set(ends.values()):
            os.close(end)

    def _watch(self, ours: int, kind: int) -> None:
        os.set_blocking(ours, False)
        self._kinds[ours] = kind
        self._selector.register(ours, selectors.EVENT_READ)

    def _forward(self, ours: int) -> bool:
        """Sends on what one output stream has; False when there was nothing."""
        try:
            data = os.read(ours, CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # a pseudo-terminal whose last user is gone
                raise
            data = b""
        if data:
            self._send(self._kinds[ours], data)
        else:
            self._close_output(ours)
        return bool(data)

    def _drain(self) -> None:
        """Sends on what is left in the pipes, now that nobody can write any more."""
        for ours in list(self._kinds):
            while ours in self._kinds and self._forward(ours):
                pass

    def _close_output(self, ours: int) -> None:
        del self._kinds[ours]
        self._selector.unregister(ours)
        if ours == self._input:
            self._input = -1
        os.close(ours)

    def _send(self, kind: int, payload: bytes) -> None:
        view = memoryview(frames.encode(kind, payload))
        while view:
            view = view[os.write(self._channel, view) :]

    def _reap(self) -> None:
        """Collects every child that ended, also the orphans that became ours."""
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(raw)
                self._status = 128 - code if code < 0 else code

    def _obey(self, kind: int, payload: bytes) -> None:
        """Does what a frame of the runner asks."""
        if kind == frames.START:
            self._start()
        elif kind == frames.INPUT:
            self._waiting += payload
            self._owed += len(payload)
            self._input_ended = not payload
            self._push_input()
        elif kind == frames.SIGNAL and self._pid > 0:
            self._signal(payload[0])
        elif kind == frames.WINDOW and self._terminal >= 0:
            self._resize(*struct.unpack("<HH", payload))
        elif kind == frames.HANGUP:
            wanted = frames.OUTPUT if payload[0] == 1 else frames.ERROR
            for ours in [fd for fd, kind in self._kinds.items() if kind == wanted]:
                self._close_output(ours)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def _resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _push_input(self) -> None:
        """Gives the command as much of its stdin as it takes now."""
        try:
            while self._waiting and self._input >= 0:
                del self._waiting[: os.write(self._input, self._waiting[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # it closed its stdin: nobody wants the rest
            self._end_input()
        if self._input < 0:
            self._waiting.clear()
        if self._owed and len(self._waiting) < frames.INPUT_BACKLOG:
            self._send(frames.TAKEN, struct.pack("<I", self._owed))
            self._owed = 0
        if self._input_ended and not self._waiting:
            self._end_input()
        self._watch_input(bool(self._waiting))

    def _watch_input(self, wanted: bool) -> None:
        """Has the loop wake up, or not, when the command takes more of its stdin."""
        if self._input < 0:
            return
        events = selectors.EVENT_WRITE if wanted else 0
        if self._input in self._kinds:
            self._selector.modify(self._input, selectors.EVENT_READ | events)
        elif self._input in self._selector.get_map():
            if not wanted:
                self._selector.unregister(self._input)
        elif wanted:
            self._selector.register(self._input, events)

    def _end_input(self) -> None:
        """Closes the command's stdin; a terminal stays, since it is its output as well."""
        if self._input < 0 or self._input == self._terminal:
            return
        self._watch_input(False)
        os.close(self._input)
        self._input = -1


def end_others() -> None:
    """Kills every process of the guest but this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _become(spec: dict[str, Any], ends: dict[int, int]) -> None:
    """In the child: the caller's limits, user, folder and environment, then the program."""
    command: list[str] = spec["command"]
    try:
        os.setsid()
        # Above the three it is about to replace, so that none is overwritten early.
        moved = {number: fcntl.fcntl(end, fcntl.F_DUPFD, 10) for number, end in ends.items()}
        for number, end in moved.items():
            os.dup2(end, number)
        os.closerange(3, 1024)
        if spec["interactive"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for limit, (soft, hard) in spec["limits"].items():
            resource.setrlimit(int(limit), (soft, hard))
        os.umask(spec["umask"])
        os.setgroups(spec["groups"])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        os.chdir(spec["workdir"])
        os.execvpe(command[0], command, spec["environment"])
    except OSError as error:
        status = 127 if isinstance(error, FileNotFoundError) else 126
        name = spec["workdir"] if error.filename == spec["workdir"] else command[0]
        os.write(2, f"rdmatx lab: {name}: {error.strerror}\n".encode())
        os._exit(status)
    except BaseException as error:
        os.write(2, f"rdmatx lab: {command[0]}: {error}\n".encode())
    os._exit(126)
