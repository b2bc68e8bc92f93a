"""Run a fixed set of processes under one parent, for development machines without systemd or Kubernetes.

Each child leads a process group of its own, so Ctrl-C reaches only the supervisor, which then stops the children. Only the
leader of a group receives SIGTERM: it is responsible for its workers, which might drop their work on the signal. Whatever is
left of the group after its leader has exited is killed.
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

POLL_SECONDS = 0.1  # the delay until a signal or an exit is noticed; output is forwarded immediately
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0
MAX_READ_BYTES = 1024 * 1024  # the capacity of a pipe: one read empties it
MAX_LINE_BYTES = 64 * 1024
ANSI_COLORS = (36, 33, 32, 35, 34, 31)  # ANSI: cyan, yellow, green, magenta, blue, red
PR_SET_PDEATHSIG = 1

# Loaded before any fork, because a child should do as little as possible between fork and exec.
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Process:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the supervisor's own


class Supervisor:
    """Starts all processes, restarts those that exit, and stops all on SIGINT or SIGTERM. A second Ctrl-C kills them."""

    def __init__(self, processes: Sequence[Process], *, grace: float = 30.0) -> None:
        width = max((len(process.name) for process in processes), default=0)
        self._children = [
            _Child(p, _format_label(p.name.ljust(width), ANSI_COLORS[i % len(ANSI_COLORS)]))
            for i, p in enumerate(processes)
        ]
        self._label = _format_label(" " * width, 1)
        self._grace = grace
        self._kill_at: float | None = None  # set when stopping begins; infinite after SIGKILL
        self._signals: list[int] = []  # handled in the loop, so that none interrupts the start of a child
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until every child has exited. Return 0 if all stopped when asked, 1 if any had to be killed."""
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
            self._handle_signal(self._signals.pop(0))
        if self._kill_at is None:
            self._start_due()
        elif time.monotonic() >= self._kill_at:
            self._kill_all()
        for key, _ in self._selector.select(POLL_SECONDS):
            self._forward_output(key.data)
        for child in self._children:
            if child.popen and (code := child.popen.poll()) is not None:
                self._handle_exit(child, code)

    def _handle_signal(self, number: int) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._log(f"stopping, up to {self._grace:g} s; press Ctrl-C again to kill all processes")
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
                    self._log(
                        f"{child.process.name} cannot start: {error}; retrying in {child.schedule_restart():g} s"
                    )

    def _kill_all(self) -> None:
        remaining = [child for child in self._children if child.popen]
        self._log("killing " + ", ".join(child.process.name for child in remaining))
        self._kill_at = math.inf  # SIGKILL cannot be ignored: only wait from now on
        for child in remaining:
            child.kill()

    def _handle_exit(self, child: "_Child", code: int) -> None:
        child.kill()  # the rest of its group: the leader has exited
        self._forward_output(child, last=True)
        child.popen = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        restart = f"; restarting in {child.schedule_restart():g} s" if self._kill_at is None else ""
        self._log(f"{child.process.name} {how}{restart}")

    def _forward_output(self, child: "_Child", *, last: bool = False) -> None:
        data = child.read()
        self._write(child.label, child.lines(data))
        if child.output and (last or not data):
            self._selector.unregister(child.output)
            child.output.close()
            child.output = None
            self._write(child.label, child.lines(b"\n" if child.partial else b""))

    def _log(self, message: str) -> None:
        self._write(self._label, [message.encode()])

    def _write(self, label: bytes, lines: Sequence[bytes]) -> None:
        data = b"".join(label + line + b"\n" for line in lines)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # the terminal or the reader is gone, so nobody can press Ctrl-C
            self._signals.append(signal.SIGTERM)


class _Child:
    def __init__(self, process: Process, label: bytes) -> None:
        self.process = process
        self.label = label
        self.popen: subprocess.Popen[bytes] | None = None  # None while it waits for its next start
        self.output: IO[bytes] | None = None
        self.partial = b""  # an incomplete line
        self.start_at = 0.0
        self._started = 0.0
        self._backoff = INITIAL_BACKOFF_SECONDS

    def start(self) -> IO[bytes]:
        self._started = time.monotonic()
        self.popen = subprocess.Popen(
            self.process.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.process.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=partial(_exit_with_parent, os.getpid()),  # safe: the supervisor has one thread
        )
        assert self.popen.stdout  # noqa: S101 - PIPE was asked for
        self.output = self.popen.stdout
        os.set_blocking(self.output.fileno(), False)
        return self.output

    def read(self) -> bytes:
        """Return the new output, or an empty string at its end."""
        try:
            return os.read(self.output.fileno(), MAX_READ_BYTES) if self.output else b""
        except BlockingIOError:  # an orphan keeps the pipe open after its leader has exited
            return b""

    def lines(self, data: bytes) -> list[bytes]:
        *lines, self.partial = (self.partial + data).split(b"\n")
        if len(self.partial) > MAX_LINE_BYTES:
            lines.append(self.partial)
            self.partial = b""
        return lines

    def kill(self) -> None:
        if self.popen:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def schedule_restart(self) -> float:
        """Schedule the next start, with a backoff if the process keeps exiting, and return the delay."""
        uptime = time.monotonic() - self._started
        delay = INITIAL_BACKOFF_SECONDS if uptime >= MAX_BACKOFF_SECONDS else self._backoff
        self._backoff = min(delay * 2, MAX_BACKOFF_SECONDS)
        self.start_at = time.monotonic() + delay
        return delay


def _format_label(name: str, color: int) -> bytes:
    return f"\x1b[{color}m{name} |\x1b[0m ".encode() if os.isatty(1) else f"{name} | ".encode()


def _exit_with_parent(parent: int) -> None:
    """Make the child exit with the supervisor, even if that is killed with SIGKILL. Called before exec."""
    # SIGTERM lets a leader stop its own workers. After a SIGKILL they would stay.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent exited before prctl
        os._exit(1)
