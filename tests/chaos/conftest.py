from __future__ import annotations

from typing import Any

from tests.process_harness import harness, rng
from tests.tcp_proxy import proxy

__all__ = ["harness", "proxy", "rng"]

# The name of a property with the figures of a test, which are printed at the end.
FIGURES = "figures"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties:
            if name == FIGURES and report.when == "call":
                terminalreporter.write_line(str(value))
