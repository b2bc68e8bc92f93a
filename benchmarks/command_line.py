"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.processes import REPOSITORY, BenchmarkError
from benchmarks.report import Report, console, log_progress
from benchmarks.system import Workspace, describe_environment

SERVICES = REPOSITORY / "tools" / "services" / "services"

Measure = Callable[[Workspace, argparse.Namespace, Report], None]


def create_parser(name: str, description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument(
        "--rounds",
        type=parse_positive,
        default=rounds,
        help="measure everything this many times, in turns (default: %(default)s)",
    )
    parser.add_argument(
        "--database",
        type=parse_server,
        metavar="URL",
        help="create the database on this PostgreSQL, MariaDB or MySQL server; `postgres`, `mariadb` and `mysql` "
        "stand for those that `make services` starts (default: SQLite)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="create the temporary folder here (default: the system's temporary folder)",
    )
    parser.add_argument("--save", action="store_true", help="write the JSON line to benchmarks/results/")
    return parser


def parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def parse_server(text: str) -> str:
    """Return the URL of a server that is given by its URL or by its name in `make services`."""
    try:
        return text if "://" in text else find_service_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def find_service_url(name: str) -> str:
    """Return the URL of a server that `make services` starts. Raise ValueError for an unknown name."""
    result = subprocess.run([SERVICES, "url", name], capture_output=True, text=True)
    if result.returncode:
        raise ValueError(result.stderr.strip())
    return result.stdout.strip()


def run_program(parser: argparse.ArgumentParser, name: str, measure: Measure) -> None:
    """Parse the command line, measure, and publish the report. Everything that was started is stopped on exit."""
    options = parser.parse_args()
    with exit_cleanly(name), Workspace.open(options.folder, options.database) as workspace:
        report = run_measurement(name, measure, workspace, options)
    report.publish(save=options.save)


def run_measurement(name: str, measure: Measure, workspace: Workspace, options: argparse.Namespace) -> Report:
    """Return the report of one benchmark."""
    report_options = {
        key: value for key, value in vars(options).items() if key not in ("database", "folder", "save")
    }
    report = Report(name, report_options)
    report.on |= describe_environment(workspace)
    measure(workspace, options, report)
    return report


@contextlib.contextmanager
def exit_cleanly(name: str) -> Iterator[None]:
    """End the program with a message and an exit status, after the cleanup, on a signal or a BenchmarkError."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt_once)
    try:
        yield
    except KeyboardInterrupt:
        log_progress("interrupted; everything that was started has been stopped")
        sys.exit(130)
    except BenchmarkError as error:
        console.print(f"{name} could not be measured: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)


def _interrupt_once(number: int, frame: object) -> None:
    """Ignore further signals: each part of the cleanup has a time limit and must not be interrupted."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
