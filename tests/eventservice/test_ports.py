"""`make run` looks for taken ports before it does anything, and says which others are free."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command

from eventservice.management.commands import up
from eventservice.management.ports import refuse_taken


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield port_of(listener)


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return port_of(listener)


def test_free_ports_are_fine_and_stay_free(free: int) -> None:
    refuse_taken({"PORT": free})
    refuse_taken({"PORT": free})


def test_a_taken_port_is_refused_with_one_that_is_free(taken: int, free: int) -> None:
    with pytest.raises(CommandError, match=f"Port {taken} is taken.*: TARGET_PORT=\\d+ make run$") as refusal:
        refuse_taken({"PORT": free, "TARGET_PORT": taken})
    refuse_taken({"TARGET_PORT": int(re.findall(r"\d+", str(refusal.value))[-1])})


def test_all_that_are_taken_are_told_at_once(taken: int) -> None:
    with pytest.raises(CommandError) as refusal:
        refuse_taken({"PORT": taken, "TARGET_PORT": taken})
    chosen = re.findall(r"PORT=(\d+)", str(refusal.value))
    assert len(set(chosen)) == 2


def test_two_cannot_have_the_same_port(free: int) -> None:
    with pytest.raises(CommandError, match=f"Port {free} is taken"):
        refuse_taken({"PORT": free, "TARGET_PORT": free})


def test_nothing_is_begun_on_a_taken_port(taken: int, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Mock()
    monkeypatch.setattr(up, "call_command", begun)
    with pytest.raises(CommandError, match="is taken"):
        call_command("up", "--port", str(taken), "--target-port", str(free))
    begun.assert_not_called()
