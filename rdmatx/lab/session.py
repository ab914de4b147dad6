"""One run of the lab: its hosts, and the loop that carries streams and signals."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rdmatx.errors import UnavailableError
from rdmatx.lab import boot
from rdmatx.lab.host import GONE, Host
from rdmatx.lab.machine import Machine
from rdmatx.lab.network import Links, Network
from rdmatx.lab.options import Options
from rdmatx.lab.output import Output
from rdmatx.lab.terminal import Signals, window_size

BOOT_S = 60.0
GRACE_S = 5.0
TIMED_OUT = 124
NEVER = float("inf")


class Session:
    """The hosts of one run. Used by the thread that made it; ``close`` ends everything."""

    def __init__(
        self, kernel: Path, specs: Sequence[boot.Spec], options: Options, network: Network
    ) -> None:
        """Boots a kernel for each of ``specs``; raises ``UnavailableError`` without room for all."""
        self._options = options
        self._output = Output(len(specs), options.json)
        self._hosts: list[Host] = []
        self._links = Links(network)
        self._dead_ends: set[int] = set()  # ends of links whose host is gone
        self._selector = selectors.PollSelector()
        self._started = False
        self._interrupts = 0
        self._ended: list[Host] = []  # in the order of their ends
        self._forced: int | None = None  # the status where we, not the commands, chose the end
        self._over = False
        now = time.monotonic()
        self._give_up = now + BOOT_S
        self._deadline = NEVER if options.timeout is None else now + options.timeout
        self._linger_end = NEVER
        try:
            memory = boot.parse_memory(options.memory)
            place = boot.memory_folder(memory * len(specs))
            for index, spec in enumerate(specs):
                descriptors = [end.fileno() for end in self._links.ends[index]]
                machine = Machine(
                    kernel,
                    spec,
                    memory=memory,
                    place=place,
                    network=network.kernel_arguments(index, descriptors),
                    links=descriptors,
                )
                label = "the lab" if len(specs) == 1 else f"host {index}"
                host = Host(index, machine, self._output, label=label, has_input=spec.input)
                self._hosts.append(host)
        except BaseException:
            self.close()
            raise

    def run(self, signals: Signals) -> int:
        """Carries everything until all commands have ended; returns the exit status."""
        self._selector.register(signals.fileno(), selectors.EVENT_READ)
        for host in self._hosts:
            self._selector.register(host.machine.log, selectors.EVENT_READ, host)
        while not self._over:
            self._watch()
            end = min(self._deadline, self._give_up, self._linger_end)
            pause = max(0.0, end - time.monotonic())
            for key, ready in self._selector.select(min(pause, 3600.0)):
                self._serve(key.fd, key.data, ready)
            for number in signals.take():
                self._on_signal(number)
            self._look_at_hosts()
            self._check_time()
        self._say_last_words()
        while self._output.waiting() and not signals.take():
            self._watch()
            for key, ready in self._selector.select():
                self._serve(key.fd, key.data, ready)
        return self.status()

    def status(self) -> int:
        """The exit status of the run: what we chose, else the first that is not 0."""
        if self._forced is not None:
            return self._forced
        return next((host.status for host in self._ended if host.status), 0)

    def statuses(self) -> list[int]:
        """The status of each host; of one that came to no end, that of the run."""
        return [self.status() if host.status is None else host.status for host in self._hosts]

    def close(self) -> None:
        """Ends the kernels that still run, and waits until nothing of them is left."""
        self._selector.close()
        for host in self._hosts:
            host.close()
        self._links.close()

    def _watch(self) -> None:
        """Tells the selector what to wait for, given what is pending."""
        wanted: dict[int, tuple[int, Host | None]] = dict.fromkeys((0, 1, 2), (0, None))
        for number in self._output.waiting():
            wanted[number] = (selectors.EVENT_WRITE, None)
        for host in self._hosts:
            events = 0 if self._over else host.events(listen=not self._output.crowded)
            wanted[host.machine.channel.fileno()] = (events, host)
            if host.wants_input and not self._over:
                wanted[0] = (selectors.EVENT_READ, host)
        known = self._selector.get_map()
        for fd, (events, whose) in wanted.items():
            if events and fd in known:
                self._selector.modify(fd, events, whose)
            elif events:
                self._selector.register(fd, events, whose)
            elif fd in known:
                self._selector.unregister(fd)

    def _serve(self, fd: int, host: Host | None, ready: int) -> None:
        """Does what one descriptor is ready for; the loop takes signals itself."""
        if fd in (1, 2):
            self._write_output(fd)
        elif host is None:
            return
        elif fd == 0:
            host.read_input()
        elif fd in self._dead_ends:
            self._links.discard(fd)
        elif fd == host.machine.log:
            if not host.read_log(self._options.verbose):
                self._selector.unregister(fd)
        else:
            host.exchange(ready)

    def _write_output(self, number: int) -> None:
        if not self._output.write(number):
            # Its reader is gone: the commands find that out as they would outside.
            for host in self._hosts:
                host.hang_up(number)

    def _look_at_hosts(self) -> None:
        """Starts the commands when all hosts are ready; notes which have ended."""
        for host in self._hosts:
            if host.gone and host.status is None:
                self._note_gone(host)
            if host.status is not None and host not in self._ended:
                self._note_end(host)
        if not self._started and all(host.ready for host in self._hosts):
            self._started = True
            self._give_up = NEVER
            for host in self._hosts:
                host.start()
        self._over = self._over or len(self._ended) == len(self._hosts)

    def _note_gone(self, host: Host) -> None:
        """A kernel ended without a word: raises where that ends the run."""
        host.status = GONE if self._forced is None else self._forced
        if self._forced is None:
            while host.read_log(self._options.verbose):
                pass
            if not self._started or len(self._hosts) == 1:
                raise UnavailableError(host.how_it_ended())
            self._output.note(host.how_it_ended())
        for end in self._links.ends[host.index]:
            self._dead_ends.add(end.fileno())
            self._selector.register(end, selectors.EVENT_READ, host)

    def _note_end(self, host: Host) -> None:
        """One command ended: where it failed, the others have a while to end as well."""
        self._ended.append(host)
        self._output.finish(host.index)
        self._output.event(event="exit", host=host.index, status=host.status, gone=host.gone)
        if host.status and self._linger_end == NEVER and self._forced is None:
            self._linger_end = time.monotonic() + self._options.linger

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            for host in self._hosts:
                host.resize(*window_size())
        elif number != signal.SIGINT:
            self._end(128 + number)
        else:
            self._interrupts += 1
            if self._interrupts > 1 or not self._started:
                self._forced = 128 + number
                self._over = True
            for host in self._hosts:
                host.send_signal(number)

    def _end(self, status: int) -> None:
        """Ends the run with ``status``, in bounded time."""
        self._forced = status
        self._deadline = self._linger_end = NEVER
        self._over = not self._started
        self._kill()

    def _kill(self) -> None:
        """Has the commands killed inside, so that files reach the disk, and bounds the wait."""
        self._give_up = time.monotonic() + GRACE_S
        for host in self._hosts:
            host.send_signal(signal.SIGKILL)

    def _check_time(self) -> None:
        now = time.monotonic()
        if self._over:
            return
        if now >= self._deadline:
            self._end(TIMED_OUT)
        elif now >= self._linger_end:
            self._end_lingering()
        elif now >= self._give_up:
            if not self._started:
                late = next(host for host in self._hosts if not host.ready)
                raise UnavailableError(late.how_it_hangs(BOOT_S))
            self._over = True

    def _end_lingering(self) -> None:
        """Ends the hosts that still run when another has failed long enough ago."""
        self._linger_end = NEVER
        failed = next(host for host in self._ended if host.status)
        for host in self._hosts:
            if host.status is None:
                self._output.note(
                    f"host {host.index} is ended: host {failed.index} failed with status "
                    f"{failed.status} {self._options.linger:g} s ago (--linger)"
                )
        self._kill()

    def _say_last_words(self) -> None:
        """What the commands cannot know, and the end of the JSON."""
        for host in self._hosts:
            while host.read_log(self._options.verbose):
                pass
            if advice := host.advice():
                self._output.note(advice)
            self._output.finish(host.index)
        self._output.event(event="end", status=self.status(), hosts=self.statuses())
