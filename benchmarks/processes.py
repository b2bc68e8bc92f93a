"""Child processes: starting and stopping them, and reading from /proc what they use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[1]
STOP_SECONDS = 45.0
INSTALL_SECONDS = 900.0
PR_SET_PDEATHSIG = 1
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROCESS_GONE_ERRORS = (FileNotFoundError, ProcessLookupError, PermissionError)

_libc = ctypes.CDLL(None)


class BenchmarkError(Exception):
    """The run cannot be measured; the message says why."""


def wait_until(condition: Callable[[], T], description: str, seconds: float, every: float = 0.05) -> T:
    """Return the first true value of the condition. Raise BenchmarkError after this many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {seconds:.0f} s in vain until {description}")
        time.sleep(every)
    return value


# --- starting and stopping ------------------------------------------------------------------------------------


@contextlib.contextmanager
def start_process(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path = REPOSITORY, **pipes: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own, so that Ctrl-C reaches only the benchmark, and stop it on exit."""
    parent = os.getpid()
    popen = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
        preexec_fn=lambda: _die_with_parent(parent),
        **pipes,
    )
    try:
        yield popen
    finally:
        stop_process(popen)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel, in the child before exec, for SIGTERM when the benchmark dies without cleaning up."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def stop_process(popen: subprocess.Popen[bytes]) -> None:
    """Stop the process with SIGTERM, after a while with SIGKILL, and kill the descendants that it left behind."""
    descendants = {pid: stat for pid in find_descendants(popen.pid) if (stat := read_stat(pid))}
    popen.terminate()
    try:
        popen.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
    for pid, stat in descendants.items():
        current = read_stat(pid)
        if current is not None and current.started == stat.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def create_virtual_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Create a virtual environment and install the packages (arguments of `pip install`). Return its Python."""
    python = folder / "bin" / "python"
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
    ):
        result = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if result.returncode:
            raise BenchmarkError(f"packages cannot be installed: {result.stderr[-800:]}")
    return python


def find_free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


# --- /proc ----------------------------------------------------------------------------------------------------


class ProcessStat(NamedTuple):
    parent: int
    group: int
    cpu_seconds: float
    started: int  # in ticks since boot; together with the pid it identifies a process


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process, or None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except PROCESS_GONE_ERRORS:
        return None
    if fields[0] in "ZX":
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return ProcessStat(int(fields[1]), int(fields[2]), cpu_seconds, int(fields[19]))


def find_descendants(root: int) -> list[int]:
    """Return the pids of all children of a process, their children, and so on."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    stats = {pid: stat for pid in pids if (stat := read_stat(pid))}
    descendants, level = [], [root]
    while level:
        level = [pid for pid, stat in stats.items() if stat.parent in level]
        descendants += level
    return descendants


def read_command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except PROCESS_GONE_ERRORS:
        return ""


def read_cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process; 0 if it has ended."""
    stat = read_stat(pid)
    return stat.cpu_seconds if stat else 0.0


def read_pss_mb(pid: int) -> float:
    """Return the memory of a process: its private pages and its share of the shared ones."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except PROCESS_GONE_ERRORS:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def read_total_pss_mb(pids: Iterable[int]) -> float:
    return sum(map(read_pss_mb, pids))


def read_total_rss_mb(pids: Iterable[int]) -> float:
    """Return the resident memory of the processes. Pages that several of them share count several times."""
    return sum(map(_read_rss_mb, pids))


def _read_rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except PROCESS_GONE_ERRORS:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class PeakMemory:
    """The highest total memory of the processes while the block runs. A sample costs them about a millisecond."""

    EVERY_SECONDS = 0.25

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        read_mb: Callable[[Iterable[int]], float] = read_total_pss_mb,
    ) -> None:
        self._pids = pids
        self._read_mb = read_mb
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = 0.0

    def _watch(self) -> None:
        while not self._stopped.wait(self.EVERY_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.mb = max(self.mb, self._read_mb(self._pids()))

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._sample()


class CpuUsage:
    """CPU seconds by pid since the object was created."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.since = time.monotonic()
        self._before = {pid: read_cpu_seconds(pid) for pid in pids}

    def seconds(self) -> dict[int, float]:
        return {pid: read_cpu_seconds(pid) - before for pid, before in self._before.items()}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.since
