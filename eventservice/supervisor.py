"""Runs a fixed set of processes under one parent, for a machine without systemd or Kubernetes.

Each child leads a process group of its own, so Ctrl-C reaches the supervisor alone and it stops them in its
own way. Only the leader of a group is sent SIGTERM: it answers for its workers, who might take the signal for
an order to drop their work. What is left of the group once its leader has gone is killed.
"""

import contextlib
import ctypes
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 10.0
READ_SIZE = 1024 * 1024  # the most that a pipe can hold: one read empties it
MAX_LINE = 64 * 1024
COLOURS = (36, 33, 32, 35, 34, 31)  # ANSI: cyan, yellow, green, magenta, blue, red
PR_SET_PDEATHSIG = 1

# Loaded before any fork: between fork and exec a child should do as little as possible.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Process:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the supervisor's own


class Supervisor:
    """Starts all, restarts what dies, stops all on SIGINT or SIGTERM; a second Ctrl-C kills at once."""

    def __init__(self, processes: Sequence[Process], *, grace: float = 30.0) -> None:
        width = max((len(process.name) for process in processes), default=0)
        colours = itertools.cycle(COLOURS)
        self._children = [_Child(p, _label(p.name.ljust(width), next(colours))) for p in processes]
        self._label = _label(" " * width, 1)
        self._grace = grace
        self._kill_at: float | None = None  # set once stopping has begun
        self._clean = True
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Returns once every child has gone: 0 if all stopped when asked, 1 if any had to be killed."""
        with self._selector, _signals_as_bytes() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                while self._kill_at is None or any(child.popen for child in self._children):
                    self._step(signals)
            finally:
                for child in self._children:
                    child.kill()
        return 0 if self._clean else 1

    def _step(self, signals: socket.socket) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._start_due(now)
        elif now >= self._kill_at:
            self._kill_all()
        for key, _ in self._selector.select(self._idle_seconds()):
            if key.fileobj is signals:
                self._obey(signals.recv(4096))
            else:
                self._relay(key.data)
        for child in self._children:
            if child.popen and (code := child.popen.poll()) is not None:
                self._bury(child, code)

    def _idle_seconds(self) -> float | None:
        moments = [child.start_at for child in self._children if not child.popen]
        if self._kill_at is not None:
            moments = [self._kill_at]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _start_due(self, now: float) -> None:
        for child in self._children:
            if child.popen or child.start_at > now:
                continue
            try:
                output = child.start()
            except OSError as error:
                self._say(f"{child.process.name} cannot start: {error}; again in {child.back_off():g} s")
            else:
                self._selector.register(output, selectors.EVENT_READ, child)

    def _obey(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGINT, signal.SIGTERM) and self._kill_at is None:
                self._say(f"stopping; up to {self._grace:g} s, Ctrl-C again kills at once")
                self._stop()
            elif number == signal.SIGINT:
                self._kill_at = time.monotonic()

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + self._grace
        for child in self._children:
            if child.popen:
                child.popen.terminate()

    def _kill_all(self) -> None:
        late = [child for child in self._children if child.popen]
        self._say("killing " + ", ".join(child.process.name for child in late))
        self._clean = False
        self._kill_at = float("inf")  # nothing withstands SIGKILL: now only wait
        for child in late:
            child.kill()

    def _bury(self, child: "_Child", code: int) -> None:
        child.kill()  # its orphans: the leader itself has gone
        self._relay(child)
        if child.output:
            self._close_output(child)
        child.popen = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        again = f"; starting it again in {child.back_off():g} s" if self._kill_at is None else ""
        self._say(f"{child.process.name} {how}{again}")

    def _relay(self, child: "_Child") -> None:
        data = child.read()
        self._write(child.label, child.lines(data))
        if child.output and not data:
            self._close_output(child)

    def _close_output(self, child: "_Child") -> None:
        if child.output:
            self._selector.unregister(child.output)
            self._write(child.label, child.close_output())

    def _say(self, message: str) -> None:
        self._write(self._label, [message.encode()])

    def _write(self, label: bytes, lines: Sequence[bytes]) -> None:
        data = b"".join(label + line + b"\n" for line in lines)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # the reader or the terminal has gone, and nobody is left to press Ctrl-C
            if self._kill_at is None:
                self._stop()


class _Child:
    def __init__(self, process: Process, label: bytes) -> None:
        self.process = process
        self.label = label
        self.popen: subprocess.Popen[bytes] | None = None  # None while it waits for its (next) start
        self.output: IO[bytes] | None = None
        self.start_at = 0.0
        self._started = 0.0
        self._backoff = FIRST_BACKOFF
        self._partial = b""

    def start(self) -> IO[bytes]:
        self._started = time.monotonic()
        self.popen = subprocess.Popen(
            self.process.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.process.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509 - the supervisor has one thread
        )
        assert self.popen.stdout  # noqa: S101 - PIPE was asked for
        self.output = self.popen.stdout
        os.set_blocking(self.output.fileno(), False)
        return self.output
