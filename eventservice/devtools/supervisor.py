"""Runs a fixed set of processes under one parent, for a machine without systemd or Kubernetes.

Each child leads a process group of its own, so Ctrl-C reaches the supervisor alone and it stops them in its
own way. Only the leader of a group is sent SIGTERM: it answers for its workers, who might take the signal for
an order to drop their work. What is left of the group once its leader has gone is killed.
"""

import contextlib
import ctypes
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

TICK = 0.1  # how late a signal or a death may be noticed; output is passed on at once
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 10.0
READ_SIZE = 1024 * 1024  # the most that a pipe can hold: one read empties it
MAX_LINE = 64 * 1024
COLOURS = (36, 33, 32, 35, 34, 31)  # ANSI: cyan, yellow, green, magenta, blue, red
PR_SET_PDEATHSIG = 1

# Loaded before any fork: between fork and exec a child should do as little as possible.
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Process:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the supervisor's own


class Supervisor:
    """Starts all, restarts what dies, stops all on SIGINT or SIGTERM; a second Ctrl-C kills at once."""

    def __init__(self, processes: Sequence[Process], *, grace: float = 30.0) -> None:
        width = max((len(process.name) for process in processes), default=0)
        self._children = [
            _Child(p, _label(p.name.ljust(width), COLOURS[i % len(COLOURS)])) for i, p in enumerate(processes)
        ]
        self._label = _label(" " * width, 1)
        self._grace = grace
        self._kill_at: float | None = (
            None  # set once stopping has begun; infinite once it has come to SIGKILL
        )
        self._signals: list[int] = []  # only noted when they arrive: none interrupts the start of a child
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Returns once every child has gone: 0 if all stopped when asked, 1 if any had to be killed."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: self._signals.append(number))
        try:
            while self._kill_at is None or any(child.popen for child in self._children):
                self._step()
        finally:
            for child in self._children:
                child.kill()
        return 1 if self._kill_at == math.inf else 0

    def _step(self) -> None:
        while self._signals:
            self._obey(self._signals.pop(0))
        if self._kill_at is None:
            self._start_due()
        elif time.monotonic() >= self._kill_at:
            self._kill_all()
        for key, _ in self._selector.select(TICK):
            self._relay(key.data)
        for child in self._children:
            if child.popen and (code := child.popen.poll()) is not None:
                self._bury(child, code)

    def _obey(self, number: int) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._say(f"stopping; up to {self._grace:g} s, Ctrl-C again kills at once")
            for child in self._children:
                if child.popen:
                    child.popen.terminate()
        elif number == signal.SIGINT:
            self._kill_at = min(self._kill_at, time.monotonic())

    def _start_due(self) -> None:
        for child in self._children:
            if child.popen is None and child.start_at <= time.monotonic():
                try:
                    self._selector.register(child.start(), selectors.EVENT_READ, child)
                except OSError as error:
                    self._say(f"{child.process.name} cannot start: {error}; again in {child.back_off():g} s")

    def _kill_all(self) -> None:
        late = [child for child in self._children if child.popen]
        self._say("killing " + ", ".join(child.process.name for child in late))
        self._kill_at = math.inf  # nothing withstands SIGKILL: now only wait
        for child in late:
            child.kill()

    def _bury(self, child: "_Child", code: int) -> None:
        child.kill()  # its orphans: the leader itself has gone
        self._relay(child, last=True)
        child.popen = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        again = f"; starting it again in {child.back_off():g} s" if self._kill_at is None else ""
        self._say(f"{child.process.name} {how}{again}")

    def _relay(self, child: "_Child", *, last: bool = False) -> None:
        data = child.read()
        self._write(child.label, child.lines(data))
        if child.output and (last or not data):
            self._selector.unregister(child.output)
            child.output.close()
            child.output = None
            self._write(child.label, child.lines(b"\n" if child.partial else b""))

    def _say(self, message: str) -> None:
        self._write(self._label, [message.encode()])

    def _write(self, label: bytes, lines: Sequence[bytes]) -> None:
        data = b"".join(label + line + b"\n" for line in lines)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # the reader or the terminal has gone, and nobody is left to press Ctrl-C
            self._signals.append(signal.SIGTERM)


class _Child:
    def __init__(self, process: Process, label: bytes) -> None:
        self.process = process
        self.label = label
        self.popen: subprocess.Popen[bytes] | None = None  # None while it waits for its (next) start
        self.output: IO[bytes] | None = None
        self.partial = b""  # the begun line
        self.start_at = 0.0
        self._started = 0.0
        self._backoff = FIRST_BACKOFF

    def start(self) -> IO[bytes]:
        self._started = time.monotonic()
        self.popen = subprocess.Popen(
            self.process.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.process.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=partial(_end_with, os.getpid()),  # safe: the supervisor has one thread
        )
        assert self.popen.stdout  # noqa: S101 - PIPE was asked for
        self.output = self.popen.stdout
        os.set_blocking(self.output.fileno(), False)
        return self.output

    def read(self) -> bytes:
        """What it has written since; empty at the end of its output."""
        try:
            return os.read(self.output.fileno(), READ_SIZE) if self.output else b""
        except BlockingIOError:  # an orphan holds the pipe open after its leader's death
            return b""

    def lines(self, data: bytes) -> list[bytes]:
        *lines, self.partial = (self.partial + data).split(b"\n")
        if len(self.partial) > MAX_LINE:
            lines.append(self.partial)
            self.partial = b""
        return lines

    def kill(self) -> None:
        if self.popen:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def back_off(self) -> float:
        """Sets the next start: soon, unless it keeps dying."""
        lived = time.monotonic() - self._started
        delay = FIRST_BACKOFF if lived >= LONGEST_BACKOFF else self._backoff
        self._backoff = min(delay * 2, LONGEST_BACKOFF)
        self.start_at = time.monotonic() + delay
        return delay


def _label(name: str, colour: int) -> bytes:
    return f"\x1b[{colour}m{name} |\x1b[0m ".encode() if os.isatty(1) else f"{name} | ".encode()


def _end_with(parent: int) -> None:
    """In the child, before exec: it must not outlive a supervisor that was killed with SIGKILL."""
    # SIGTERM, so that a leader takes its own workers with it: after a SIGKILL they would stay.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before prctl could see it
        os._exit(1)
