"""Runs a command in the lab: starts the kernel and carries streams and signals."""

from __future__ import annotations

import os
import selectors
import signal
import stat
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab import boot, cache, frames, tools
from rdmatx.lab.machine import Machine
from rdmatx.lab.native import run_native
from rdmatx.lab.terminal import Signals, raw_terminal, window_size

BOOT_S = 60.0
GRACE_S = 5.0
CHUNK = 65536
WRITE_BYTES = 4096  # never blocks on a pipe that poll(2) calls writable
BACKLOG = 1 << 20  # bytes of output that may wait for a slow reader
SHOWN_LOG_LINES = 12
TIMED_OUT = 124
MAPS_FULL = b"vm.max_map_count has been reached"
MAPS_ADVICE = (
    "rdmatx lab: a process inside ran out of memory mappings, of which it needs one for each page "
    "in the worst case; on the host, as root: sysctl -w vm.max_map_count=1048576\n"
)


@dataclass(frozen=True)
class Options:
    """The choices of one run; ``rdmatx.lab.run`` says what each means."""

    mem: str = "4G"
    timeout: float | None = None
    native: bool = False
    workdir: Path | None = None
    user: int | None = None
    tty: bool = False
    verbose: bool = False


def run_command(command: list[str], options: Options) -> int:
    """Runs ``command`` and returns its exit status; raises what ``rdmatx.lab.run`` documents."""
    if not command:
        raise UsageError("no command to run: give one behind `--`")
    if options.timeout is not None and options.timeout <= 0:
        raise UsageError("the timeout is a positive number of seconds")
    if options.native:
        return run_native(command, options.timeout, options.workdir)
    tools.require_machine()
    if os.environ.get("RDMATX_LAB"):
        raise UsageError("this is the inside of the lab already: run the command itself")
    kernel = cache.find_kernel()
    if kernel is None:
        raise UnavailableError("the lab's kernel is not built: run `rdmatx lab build`")
    tools.require(tools.RUN_PACKAGES, "the lab")
    settle_streams()
    spec = make_spec(command, options)
    with Signals() as signals, raw_terminal(spec.interactive):
        session = Session(kernel, spec, options)
        try:
            return session.run(signals)
        finally:
            session.close()


def settle_streams() -> None:
    """Writes out what Python holds back, and fills closed streams so that no pipe becomes one."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def make_spec(command: list[str], options: Options) -> boot.Spec:
    """What the guest is told of the caller."""
    folder = boot.writable_folder(options.workdir or Path.cwd())
    terminal = [number for number in (1, 2) if os.isatty(number)]
    if options.tty:
        if not (os.isatty(0) and os.isatty(1)):
            raise UsageError("--tty needs a terminal on stdin and stdout")
        terminal.insert(0, 0)
    own = options.user is None or options.user == os.geteuid()
    uid = os.geteuid() if options.user is None else options.user
    mask = os.umask(0o022)
    os.umask(mask)
    return boot.Spec(
        command=command,
        workdir=folder,
        writable=[folder],
        environment=boot.guest_environment(),
        uid=uid,
        gid=os.getegid() if own else uid,
        groups=os.getgroups() if own else [],
        umask=mask,
        limits=boot.guest_limits(),
        cpuinfo=boot.guest_cpuinfo(),
        terminal=terminal,
        interactive=options.tty,
        window=window_size(),
        input=options.tty or has_input(),
    )


def has_input() -> bool:
    """Whether stdin is something to pass on: a pipe, a file or a socket."""
    try:
        kind = os.fstat(0)
    except OSError:
        return False
    return not stat.S_ISCHR(kind.st_mode)


class Session:
    """One kernel and its command. Used by the thread that made it; ``close`` ends everything."""

    def __init__(self, kernel: Path, spec: boot.Spec, options: Options) -> None:
        self._options = options
        self._machine = Machine(kernel, spec, boot.parse_memory(options.mem))
        self._channel = self._machine.channel
        self._log_tail = b""
        self._decoder = frames.Decoder()
        self._selector = selectors.PollSelector()
        self._to_guest = bytearray()
        self._output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self._in_flight = 0  # bytes of stdin on the serial line
        self._input_open = spec.input
        self._ready = False
        self._interrupts = 0
        self._status: int | None = None
        self._forced: int | None = None  # the status where we, not the command, chose the end
        self._give_up = time.monotonic() + BOOT_S
        self._deadline = (
            time.monotonic() + options.timeout if options.timeout is not None else float("inf")
        )

    def run(self, signals: Signals) -> int:
        """Carries everything until the command's end; returns the exit status."""
        self._selector.register(signals.fileno(), selectors.EVENT_READ)
        self._selector.register(self._machine.log, selectors.EVENT_READ)
        while self._status is None:
            self._watch()
            pause = max(0.0, min(self._deadline, self._give_up) - time.monotonic())
            for key, ready in self._selector.select(min(pause, 3600.0)):
                if key.fd == self._channel.fileno():
                    self._exchange(ready)
                elif key.fd == self._machine.log:
                    self._read_log()
                elif key.fd == 0:
                    self._read_input()
                elif key.fd in self._output:
                    self._write_output(key.fd)
            for number in signals.take():
                self._on_signal(number)
            self._check_time()
        self._give_advice()
        while any(self._output.values()) and not signals.take():
            self._watch()
            for key, _ in self._selector.select():
                if key.fd in self._output:
                    self._write_output(key.fd)
        return self._status if self._forced is None else self._forced

    def close(self) -> None:
        """Ends the kernel, if it still runs, and waits until nothing of it is left."""
        self._selector.close()
        self._machine.close()

    def _watch(self) -> None:
        """Tells the selector what to wait for, given what is pending."""
        crowded = any(len(pending) > BACKLOG for pending in self._output.values())
        wanted = {self._channel.fileno(): 0 if crowded else selectors.EVENT_READ}
        if self._to_guest:
            wanted[self._channel.fileno()] |= selectors.EVENT_WRITE
        if self._ready and self._input_open and self._in_flight < frames.INPUT_WINDOW:
            wanted[0] = selectors.EVENT_READ
        for number, pending in self._output.items():
            if pending:
                wanted[number] = selectors.EVENT_WRITE
        for fd in (self._channel.fileno(), 0, 1, 2):
            events = wanted.get(fd, 0) if self._status is None or fd in self._output else 0
            known = fd in self._selector.get_map()
            if events and known:
                self._selector.modify(fd, events)
            elif events:
                self._selector.register(fd, events)
            elif known:
                self._selector.unregister(fd)

    def _exchange(self, ready: int) -> None:
        """Moves bytes between us and the guest, as far as both ends allow."""
        try:
            if ready & selectors.EVENT_WRITE:
                del self._to_guest[: self._channel.send(self._to_guest)]
            if ready & selectors.EVENT_READ:
                data = self._channel.recv(CHUNK)
                if not data:
                    raise ConnectionResetError
                for kind, payload in self._decoder.feed(data):
                    self._obey(kind, payload)
        except BlockingIOError:
            pass
        except (ConnectionError, ValueError):
            if self._status is None:
                self._kernel_ended()

    def _obey(self, kind: int, payload: bytes) -> None:
        """Does what a frame of the guest says."""
        if kind == frames.READY:
            self._ready = True
            self._give_up = float("inf")
        elif kind in (frames.OUTPUT, frames.ERROR):
            number = 1 if kind == frames.OUTPUT else 2
            if number in self._output:
                self._output[number] += payload
        elif kind == frames.TAKEN:
            self._in_flight -= struct.unpack("<I", payload)[0]
        elif kind == frames.EXIT:
            self._status = payload[0]
        elif kind == frames.FAILED:
            raise UnavailableError(f"the lab's guest did not come up: {payload.decode()}")

    def _read_input(self) -> None:
        try:
            data = os.read(0, frames.INPUT_WINDOW - self._in_flight)
        except OSError:
            data = b""
        self._in_flight += len(data)
        self._input_open = bool(data)
        self._to_guest += frames.encode(frames.INPUT, data)

    def _write_output(self, number: int) -> None:
        pending = self._output[number]
        try:
            del pending[: os.write(number, pending[:WRITE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            # Its reader is gone: the command finds that out as it would outside.
            del self._output[number]
            if number in self._selector.get_map():
                self._selector.unregister(number)
            self._to_guest += frames.encode(frames.HANGUP, bytes([number]))

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._to_guest += frames.encode(frames.WINDOW, struct.pack("<HH", *window_size()))
        elif number != signal.SIGINT:
            self._end(128 + number)
        else:
            self._interrupts += 1
            if self._interrupts > 1 or not self._ready:
                self._status = self._forced = 128 + number
            else:
                self._to_guest += frames.encode(frames.SIGNAL, bytes([number]))

    def _end(self, status: int) -> None:
        """Has the command killed inside, so that files reach the disk, and bounds the wait."""
        if not self._ready:
            self._status = status
        self._forced = status
        self._deadline = float("inf")
        self._give_up = time.monotonic() + GRACE_S
        self._to_guest += frames.encode(frames.SIGNAL, bytes([signal.SIGKILL]))

    def _check_time(self) -> None:
        now = time.monotonic()
        if self._status is not None:
            return
        if now >= self._deadline:
            self._end(TIMED_OUT)
        elif now >= self._give_up:
            if self._forced is None:
                raise UnavailableError(
                    f"the lab did not boot in {BOOT_S:.0f} s{self._last_words()}"
                )
            self._status = self._forced

    def _kernel_ended(self) -> None:
        """The channel closed without a word: raises what is known of the kernel's end."""
        if self._forced is not None:
            self._status = self._forced
            return
        when = "while the command ran" if self._ready else "before the command started"
        raise UnavailableError(f"the lab's kernel ended {when}{self._last_words()}")

    def _read_log(self) -> bool:
        """Takes what the kernel printed; False when there is nothing more now."""
        try:
            data = os.read(self._machine.log, CHUNK)
        except BlockingIOError:
            return False
        if not data and self._machine.log in self._selector.get_map():
            self._selector.unregister(self._machine.log)
        if self._options.verbose and 2 in self._output:
            self._output[2] += data
        self._log_tail = (self._log_tail + data)[-CHUNK:]
        return bool(data)

    def _give_advice(self) -> None:
        """Adds to stderr what the command cannot know: that the host ended a process of it."""
        while self._read_log():
            pass
        if MAPS_FULL in self._log_tail and 2 in self._output:
            self._output[2] += MAPS_ADVICE.encode()

    def _last_words(self) -> str:
        """The end of the kernel's log and what it suggests, for an error message."""
        while self._read_log():
            pass
        text = self._log_tail.decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if not lines:
            return " without a word"
        hint = ""
        if "ptrace" in lines[-1]:
            hint = "\nptrace is not allowed here: start the container with --cap-add SYS_PTRACE"
        return "; it said at last:\n" + "\n".join(lines[-SHOWN_LOG_LINES:]) + hint
