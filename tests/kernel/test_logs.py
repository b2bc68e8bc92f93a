"""A log line is one JSON object with its context, whether our code or a library has written it."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from eventservice.kernel.logging import build_logging_config, get_logger


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Return what has been logged as JSON while the test runs."""
    config = build_logging_config("INFO", "json")["formatters"]["structured"]
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(config.pop("()")(**config))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_line_carries_the_correlation_id_and_tenant_of_its_context(lines: Callable[[], Any]) -> None:
    with structlog.contextvars.bound_contextvars(correlation_id="c-1", tenant_id="acme"):
        get_logger("here").info("call.started", attempt=2)
    get_logger("here").info("idle")

    started, idle = lines()
    assert {
        "correlation_id": "c-1",
        "tenant_id": "acme",
        "event": "call.started",
        "attempt": 2,
    }.items() <= started.items()
    assert (started["level"], started["logger"]) == ("info", "here")
    assert started["timestamp"].endswith("Z")
    assert "correlation_id" not in idle


def test_a_librarys_line_carries_them_too(lines: Callable[[], Any]) -> None:
    with structlog.contextvars.bound_contextvars(correlation_id="c-1"):
        logging.getLogger("library").warning("%d of %s", 2, "things")
    (line,) = lines()
    assert {"event": "2 of things", "correlation_id": "c-1", "level": "warning"}.items() <= line.items()


@pytest.mark.parametrize("log", [get_logger("ours"), logging.getLogger("theirs")], ids=["ours", "theirs"])
def test_an_exception_stays_within_its_line(log: Any, lines: Callable[[], Any]) -> None:
    try:
        raise ValueError("no\nsuch")
    except ValueError:
        log.exception("failed")
    (line,) = lines()
    assert line["event"] == "failed"
    assert "Traceback" in line["exception"]
    assert "ValueError: no\nsuch" in line["exception"]


def test_lines_below_the_level_are_not_written(lines: Callable[[], Any]) -> None:
    get_logger("here").debug("noise")
    assert lines() == []


def test_the_console_format_is_for_people() -> None:
    config = build_logging_config("INFO", "console")["formatters"]["structured"]
    formatter = config.pop("()")(**config)
    record = logging.LogRecord("here", logging.INFO, __file__, 1, "hello %s", ("you",), None)
    text = formatter.format(record)
    assert "hello you" in text
    assert not text.startswith("{")
