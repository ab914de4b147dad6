"""What the caller reads of the hosts: their bytes, or lines that say whose they are."""

from __future__ import annotations

import json
import os
from typing import Any

WRITE_BYTES = 4096  # never blocks on a pipe that poll(2) calls writable
BACKLOG = 1 << 20  # bytes of output that may wait for a slow reader
LONGEST_LINE = 1 << 16
NAMES = {1: "stdout", 2: "stderr"}


class Output:
    """The caller's stdout and stderr, with what waits for them. Used by the session's thread.

    One host's output is passed on byte for byte. Where there are several, or with ``as_json``,
    it goes line by line: behind "[host N] ", or as a JSON object each on stdout.
    """

    def __init__(self, hosts: int, as_json: bool) -> None:
        self._plain = hosts == 1 and not as_json
        self._json = as_json
        self._pending: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self._begun: dict[tuple[int, int], bytearray] = {}  # (host, stream): a line without end

    @property
    def crowded(self) -> bool:
        """Whether so much waits that no host should be listened to."""
        return any(len(pending) > BACKLOG for pending in self._pending.values())

    def waiting(self) -> list[int]:
        """Those of the descriptors 1 and 2 that something waits for."""
        return [number for number, pending in self._pending.items() if pending]

    def take(self, host: int, number: int, payload: bytes) -> None:
        """Takes what a host wrote to its stream 1 or 2."""
        if self._plain:
            self._put(number, payload)
            return
        begun = self._begun.setdefault((host, number), bytearray())
        begun += payload
        *lines, rest = begun.split(b"\n")
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._begun[host, number] = bytearray(rest)
        for line in lines:
            self._line(host, number, bytes(line))

    def finish(self, host: int) -> None:
        """Takes the end of a host's streams: a line without end is one."""
        for key in [key for key in self._begun if key[0] == host]:
            rest = self._begun.pop(key)
            if rest:
                self._line(host, key[1], bytes(rest))

    def take_log(self, host: int, data: bytes) -> None:
        """Takes what a host's kernel printed."""
        if self._plain:
            self._put(2, data)
        else:
            for line in data.splitlines():
                self._put(2, b"[kernel of host %d] %s\n" % (host, line))

    def note(self, text: str) -> None:
        """Takes a line of the lab's own for the caller."""
        self._put(2, f"rdmatx lab: {text}\n".encode())

    def event(self, **fields: Any) -> None:
        """Takes what happened, for those who read JSON."""
        if self._json:
            self._put(1, json.dumps(fields).encode() + b"\n")

    def write(self, number: int) -> bool:
        """Writes some of what waits for 1 or 2; False where nobody reads that any more."""
        pending = self._pending[number]
        try:
            del pending[: os.write(number, pending[:WRITE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            del self._pending[number]
            return False
        return True

    def _line(self, host: int, number: int, line: bytes) -> None:
        if self._json:
            text = line.decode(errors="replace")
            self.event(event="output", host=host, stream=NAMES[number], text=text)
        else:
            self._put(number, b"[host %d] %s\n" % (host, line))

    def _put(self, number: int, data: bytes) -> None:
        if number in self._pending:
            self._pending[number] += data
