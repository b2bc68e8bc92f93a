"""docs/getting-started.md works from top to bottom: its blocks are pasted, in their order, into the shells of its terminals.

Outputs that the page shows must appear in the same order. `…` stands for any text.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process_harness import wait_until

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "getting-started.md").read_text()
# What the page uses, which other programs on the machine of the tests may use as well.
PORTS = ("8000", "9000", "3000", "3001")
REMOVED_VARIABLES = ("EVENTSERVICE_", "DATABASE_URL", "DJANGO_", "XDG_", "MAKE", "EGRESS_", "PYTEST_")

pytestmark = pytest.mark.sqlite_only  # the page starts the service with an SQLite database


class Step(NamedTuple):
    terminal: str
    commands: str  # to paste, or nothing
    output: str  # that is shown, or nothing


def list_steps() -> list[Step]:
    blocks = re.findall(
        r"<!-- terminal: (\w+) -->\n(?:```sh\n(.*?)```\n?)?(?:```text\n(.*?)```)?", PAGE, re.DOTALL
    )
    return [Step(*block) for block in blocks]


def list_blocks(name: str) -> list[str]:
    """Return the commands of another page, in their order."""
    return re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


class Shell:
    """An interactive shell in a folder, whose standard input is what a person would paste."""

    def __init__(self, folder: Path, log: Path, env: dict[str, str]) -> None:
        self._log = log
        self._position = 0  # after what was expected last
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "--noediting", "-i"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def paste(self, commands: str) -> None:
        assert self._popen.stdin
        self._popen.stdin.write(commands.encode())
        self._popen.stdin.flush()

    def expect(self, output: str) -> None:
        """Wait until the lines appear, in this order."""
        patterns = [re.compile(rf"^{_build_pattern(line)}[ \t]*$", re.M) for line in output.splitlines()]
        try:
            self._position = wait_until(lambda: self._find_end(patterns), output)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- found:\n{self.read()[self._position :]}") from None

    def _find_end(self, patterns: list[re.Pattern[str]]) -> int | None:
        """Return the position after the lines, or None. One pattern for all lines would backtrack for minutes."""
        text, position = self.read(), self._position
        for pattern in patterns:
            match = pattern.search(text, position)
            if match is None:
                return None
            position = match.end()
        return position

    def read(self) -> str:
        return self._log.read_text(errors="replace")

    def press_ctrl_c(self) -> None:
        os.killpg(self._popen.pid, signal.SIGINT)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.communicate()


def _build_pattern(line: str) -> str:
    return r"[^\n]*?".join(r"[ \t]+".join(map(re.escape, re.split(r"\s+", part))) for part in line.split("…"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder that looks like a clone in which the service is installed."""
    folder = tmp_path / "clone"
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in (".venv", ".git", "data"):
            (folder / path.name).symlink_to(path)
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for stamp in re.findall(r"^[A-Z_]*STAMP := \$\(VENV\)/(.+)$", (ROOT / "Makefile").read_text(), re.M):
        (folder / ".venv" / stamp).touch()
    return folder


class Reader:
    """Whoever follows the page: with a home folder, terminals, and ports that are free on this machine."""

    def __init__(self, clone: Path, folder: Path) -> None:
        self._clone, self._folder = clone, folder
        self._ports = dict(zip(PORTS, _find_free_ports(len(PORTS)), strict=True))
        self._shells: dict[str, Shell] = {}
        self._env = {
            name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)
        } | {
            "HOME": str(folder),
            "DB_PATH": str(folder / "event_service.db"),
            "PORT": self._ports["8000"],
            "TARGET_PORT": self._ports["9000"],
            "SHUTDOWN_SECONDS": "1",
            "PS1": "",  # an empty prompt
            "PS2": "",
        }

    def translate(self, text: str) -> str:
        """Replace the page's ports and temporary files by those of the test."""
        text = text.replace("/tmp/", f"{self._folder}/")
        return re.sub("|".join(PORTS), lambda port: self._ports[port[0]], text)

    def get_shell(self, terminal: str) -> Shell:
        if terminal not in self._shells:
            self._shells[terminal] = Shell(self._clone, self._folder / f"{terminal}.log", self._env)
        return self._shells[terminal]

    def follow(self, step: Step) -> None:
        shell = self.get_shell(step.terminal)
        shell.paste(self.translate(step.commands))
        if step.terminal == "commands":
            shell.paste("printf '\\nexit status %s\\n' $?\n")
        shell.expect(self.translate(step.output))
        if step.terminal == "commands":
            shell.expect("exit status 0")

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()


def _find_free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as bound:
        sockets = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(one.getsockname()[1]) for one in sockets]


@pytest.fixture
def reader(clone: Path, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(clone, tmp_path)
    try:
        yield reader
    finally:
        reader.close()


class Browser:
    """Enough of a browser to sign in and open pages."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))

    def open(self, path: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with self._opener.open(f"{self._url}{path}", data, timeout=30) as response:
            return str(response.read().decode())

    def sign_in(self, name: str, password: str) -> str:
        page = self.open("/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token
        return self.open("/login/", username=name, password=password, csrfmiddlewaretoken=token[1])


def test_its_blocks_can_be_pasted_from_top_to_bottom(reader: Reader, tmp_path: Path) -> None:
    steps = list_steps()
    assert len(steps) >= 15
    assert sum(PAGE.count(f"```{kind}\n") for kind in ("sh", "text")) == sum(
        bool(part) for step in steps for part in step[1:]
    )
    end = next(at for at, step in enumerate(steps) if "webhook remove" in step.commands)
    for step in steps[:end]:
        reader.follow(step)
    assert (tmp_path / "endpoint.json").stat().st_mode & 0o077 == 0  # it has a secret
    _assert_the_console_shows_everything(reader)
    for step in steps[end:]:
        reader.follow(step)
    start, *others = list_blocks("README.md")
    assert start == steps[0].commands
    assert len(others) == 2
    for commands in [*others, *list_blocks("docs/timers.md")]:
        reader.follow(Step("commands", commands, ""))

    service = reader.get_shell("service")
    service.press_ctrl_c()
    service.expect("… stopping, up to …")
    service.paste("printf 'the prompt is back\\n'\n")
    service.expect("…the prompt is back")


def _assert_the_console_shows_everything(reader: Reader) -> None:
    console = Browser(reader.translate("http://127.0.0.1:8000"))
    password = re.search(r"^Password: (\S+)$", reader.get_shell("service").read(), re.M)
    assert password
    console.sign_in("admin", password[1])
    pages = {path: console.open(path) for path in re.findall(r"<http://127\.0\.0\.1:8000(/[^>]*)>", PAGE)}
    assert len(pages) >= 5
    assert "charge" in pages["/calls/"]
    assert "order-17/reminder" in pages["/timers/?show=all"]
    assert reader.translate("http://127.0.0.1:3001/events") in pages["/webhooks/"]
    assert all("Sign out" in page for page in pages.values())


def test_it_verifies_webhooks_as_their_own_page_does() -> None:
    functions = [
        re.search(r"^def verify.*?\n(?=\n\n|```)", text, re.M | re.S)
        for text in (PAGE, (ROOT / "docs" / "webhooks.md").read_text())
    ]
    assert functions[0]
    assert functions[1]
    assert functions[0][0] == functions[1][0]


def test_the_readme_links_to_it_before_every_other_page() -> None:
    links = re.findall(r"\((docs/[\w-]+\.md)", (ROOT / "README.md").read_text())
    assert links[0] == "docs/getting-started.md"
