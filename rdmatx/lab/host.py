"""One host of a run as its runner sees it: what it has told, and what it is to be told."""

from __future__ import annotations

import os
import selectors
import struct

from rdmatx.errors import UnavailableError
from rdmatx.lab import frames
from rdmatx.lab.machine import Machine
from rdmatx.lab.output import Output

CHUNK = 65536
SHOWN_LOG_LINES = 12
GONE = 125
"""The status of a host whose kernel ended without a word of the command's end."""
POWERED_OFF = b"reboot: Power down"
MAPS_FULL = b"vm.max_map_count has been reached"
MAPS_ADVICE = (
    "a process inside ran out of memory mappings, of which it needs one for each page in the worst "
    "case; on the host, as root: sysctl -w vm.max_map_count=1048576"
)


class Host:
    """Owns one machine. Used by the session's thread; ``close`` ends the machine.

    ``status`` is None until the command has ended, or the machine has.
    """

    def __init__(
        self, index: int, machine: Machine, output: Output, *, label: str, has_input: bool
    ) -> None:
        self.index = index
        self.machine = machine
        self.ready = False
        self.gone = False
        self.status: int | None = None
        self._label = label  # "the lab", or which host of it
        self._output = output
        self._started = False
        self._decoder = frames.Decoder()
        self._to_guest = bytearray()
        self._log_tail = b""
        self._in_flight = 0  # bytes of stdin on the serial line
        self._input_open = has_input

    @property
    def running(self) -> bool:
        """Whether its command has been started and has not ended."""
        return self._started and self.status is None

    @property
    def wants_input(self) -> bool:
        """Whether it takes more of stdin now."""
        return self.running and self._input_open and self._in_flight < frames.INPUT_WINDOW

    def events(self, listen: bool) -> int:
        """What to wait for on its channel; ``listen`` says whether its output has room."""
        if self.status is not None:
            return 0
        wanted = selectors.EVENT_READ if listen else 0
        return wanted | (selectors.EVENT_WRITE if self._to_guest else 0)

    def start(self) -> None:
        """Has the command started."""
        self._started = True
        self._tell(frames.START)

    def send_signal(self, number: int) -> None:
        """Sends a signal to the command, where it runs.

        With SIGKILL it ends, and its files still reach the disk.
        """
        if self.running:
            self._tell(frames.SIGNAL, bytes([number]))

    def resize(self, rows: int, columns: int) -> None:
        """Tells the size of the caller's terminal."""
        self._tell(frames.WINDOW, struct.pack("<HH", rows, columns))

    def hang_up(self, number: int) -> None:
        """Tells that nobody reads the command's stream 1 or 2 any more."""
        self._tell(frames.HANGUP, bytes([number]))

    def read_input(self) -> None:
        """Takes some of the caller's stdin for the command."""
        try:
            data = os.read(0, frames.INPUT_WINDOW - self._in_flight)
        except OSError:
            data = b""
        self._in_flight += len(data)
        self._input_open = bool(data)
        self._tell(frames.INPUT, data)

    def exchange(self, ready: int) -> None:
        """Moves bytes between us and the guest, as far as both ends allow.

        Raises ``UnavailableError`` where the guest could not be set up.
        """
        channel = self.machine.channel
        try:
            if ready & selectors.EVENT_WRITE:
                del self._to_guest[: channel.send(self._to_guest)]
            if ready & selectors.EVENT_READ:
                data = channel.recv(CHUNK)
                if not data:
                    raise ConnectionResetError
                for kind, payload in self._decoder.feed(data):
                    self._obey(kind, payload)
        except BlockingIOError:
            pass
        except (ConnectionError, ValueError):
            self.gone = True

    def read_log(self, show: bool) -> bool:
        """Takes what the kernel printed; False when there is nothing more now, or ever."""
        try:
            data = os.read(self.machine.log, CHUNK)
        except BlockingIOError:
            return False
        if show:
            self._output.take_log(self.index, data)
        self._log_tail = (self._log_tail + data)[-CHUNK:]
        return bool(data)

    def advice(self) -> str:
        """What the command cannot know of its end, in words; empty where there is nothing."""
        return MAPS_ADVICE if MAPS_FULL in self._log_tail else ""

    def how_it_ended(self) -> str:
        """The kernel's end in words: what was going on, and the last of its log."""
        when = "while the command ran" if self._started else "before the command started"
        if self._started and POWERED_OFF in self._log_tail:
            return f"{self._label} was powered off {when}"
        return f"{self._label}'s kernel ended {when}{self._last_words()}"

    def how_it_hangs(self, seconds: float) -> str:
        """In words, that it has not come up in time."""
        while self.read_log(show=False):
            pass
        return f"{self._label} did not boot in {seconds:.0f} s{self._last_words()}"

    def _last_words(self) -> str:
        """The end of the kernel's log and what it suggests, for an error message."""
        text = self._log_tail.decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if not lines:
            return " without a word"
        hint = ""
        if "ptrace" in lines[-1]:
            hint = "\nptrace is not allowed here: start the container with --cap-add SYS_PTRACE"
        return "; it said at last:\n" + "\n".join(lines[-SHOWN_LOG_LINES:]) + hint

    def close(self) -> None:
        """Ends the kernel, if it still runs, and waits until nothing of it is left."""
        self.machine.close()

    def _obey(self, kind: int, payload: bytes) -> None:
        """Does what a frame of the guest says."""
        if kind == frames.READY:
            self.ready = True
        elif kind in (frames.OUTPUT, frames.ERROR):
            self._output.take(self.index, 1 if kind == frames.OUTPUT else 2, payload)
        elif kind == frames.TAKEN:
            self._in_flight -= struct.unpack("<I", payload)[0]
        elif kind == frames.EXIT:
            self.status = payload[0]
        elif kind == frames.FAILED:
            raise UnavailableError(f"{self._label}'s guest did not come up: {payload.decode()}")

    def _tell(self, kind: int, payload: bytes = b"") -> None:
        self._to_guest += frames.encode(kind, payload)
