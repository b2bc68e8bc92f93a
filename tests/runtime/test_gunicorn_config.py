"""The web tier as it is shipped: a silent connection blocks no worker, and gunicorn's refusals are problems, too."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from eventservice.runtime import gunicorn_config
from tests.process_harness import wait_until

WORKERS = 2


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    web = subprocess.Popen(
        [
            sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi",
            "--bind", f"127.0.0.1:{port}", "--workers", str(WORKERS),
        ],
        cwd=settings.BASE_DIR,
    )  # fmt: skip
    try:
        wait_until(lambda: is_serving(port, 5), "it serves")
        yield port
    finally:
        web.terminate()
        web.wait(15)


def is_serving(port: int, seconds: float) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=seconds) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="only Linux defers silent connections")
def test_spare_connections_of_a_browser_block_no_worker(port: int) -> None:
    spare = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * WORKERS)]
    try:
        assert is_serving(port, 10)
    finally:
        for connection in spare:
            connection.close()


UNREADABLE = {
    (400, "bad_request"): b"nonsense\r\n\r\n",
    (414, "address_too_long"): b"GET /livez?%b HTTP/1.1\r\n\r\n" % (b"x" * 8190),
    (431, "headers_too_large"): b"GET /livez HTTP/1.1\r\nX-Long: %b\r\n\r\n" % (b"x" * 8190),
    (501, "not_implemented"): b"POST /livez HTTP/1.1\r\nTransfer-Encoding: tar\r\n\r\n",
}


def test_what_gunicorn_refuses_is_a_problem_with_a_correlation_id(port: int) -> None:
    for (status, code), request in UNREADABLE.items():
        answer, problem = send(port, request)
        assert (answer.status, answer.getheader("Content-Type")) == (status, "application/problem+json")
        assert (problem["status"], problem["code"]) == (status, code)
        assert problem["correlationId"] == answer.getheader("X-Correlation-Id")


def test_a_url_may_have_eight_thousand_characters(port: int) -> None:
    answer, _ = send(port, b"GET /livez?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 8000))
    assert answer.status == 200


def send(port: int, request: bytes) -> tuple[http.client.HTTPResponse, Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer, json.load(answer)


def test_a_client_cannot_rewrite_the_path_by_a_header(port: int) -> None:
    answer, _ = send(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nSCRIPT_NAME: /li\r\n\r\n")
    assert answer.status == 200


def test_what_gunicorn_refuses_has_the_security_headers(port: int) -> None:
    answer, _ = send(port, b"nonsense\r\n\r\n")
    assert (answer.getheader("X-Content-Type-Options"), answer.getheader("X-Frame-Options")) == (
        "nosniff",
        "DENY",
    )


def test_gunicorn_logs_in_the_format_of_all_others() -> None:
    """A port that is in use is an error that gunicorn logs itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [
                sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config",
                "eventservice.wsgi", "--bind", f"127.0.0.1:{taken.getsockname()[1]}",
            ],
            cwd=settings.BASE_DIR,
            env={**os.environ, "LOG_FORMAT": "json"},
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines
    assert {line["logger"] for line in lines} == {"gunicorn.error"}


def test_a_request_that_gunicorn_refuses_is_logged_in_the_format_of_all_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    log = tmp_path / "web.log"
    with log.open("wb") as stderr:
        web = subprocess.Popen(
            [
                sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config",
                "eventservice.wsgi", "--bind", f"127.0.0.1:{port}",
            ],
            cwd=settings.BASE_DIR,
            env={**os.environ, "LOG_FORMAT": "json"},
            stderr=stderr,
        )  # fmt: skip
        try:
            wait_until(lambda: is_serving(port, 5), "it serves")
            send(port, b"nonsense\r\n\r\n")
        finally:
            web.terminate()
            web.wait(15)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line["event"].startswith("Invalid request from ip=") for line in lines)


def test_waits_that_contradict_each_other_are_refused_as_by_every_command() -> None:
    rule = "DB_LOCK_SECONDS (4 s) must be less than DB_STATEMENT_SECONDS (4 s)"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    done = subprocess.run(
        [
            sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config",
            "eventservice.wsgi", "--bind", f"127.0.0.1:{port}",
        ],
        cwd=settings.BASE_DIR,
        # Nothing connects.
        env={**os.environ, "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "DB_STATEMENT_SECONDS": "4"},
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "eventservice.E010" in done.stderr
    assert rule in done.stderr
    assert "listening" not in done.stderr


@pytest.mark.parametrize(("level", "is_collected"), [("WARNING", False), ("INFO", True)])
def test_the_fields_of_the_access_log_are_collected_only_for_a_line_that_is_written(
    level: str, is_collected: bool
) -> None:
    program = """
import sys
from gunicorn.app.wsgiapp import WSGIApplication
app = WSGIApplication("gunicorn")
log = app.cfg.logger_class(app.cfg)
log.access_log.setLevel(sys.stdin.read())
log.atoms = lambda *arguments: print("collected") or {}
log.access(None, None, {}, None)
"""
    config = ["-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi"]
    done = subprocess.run(
        [sys.executable, "-c", program, *config],
        input=level,
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ("collected" in done.stdout) is is_collected


def test_a_reload_says_that_it_reads_neither_settings_nor_code(caplog: pytest.LogCaptureFixture) -> None:
    gunicorn_config.on_reload(None)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "reload_ignored" in caplog.text
