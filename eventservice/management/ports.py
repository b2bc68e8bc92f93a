"""Check that the ports of `manage.py up` are free, and suggest others."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from django.core.management.base import CommandError

HOST = "127.0.0.1"
MIN_UNPRIVILEGED_PORT = 1024  # lower ports require root


def require_free_ports(ports: Mapping[str, int], defaults: Mapping[str, int]) -> None:
    """Raise CommandError unless the ports are free and different. The keys are the variables that select them. The command
    that it suggests keeps ports that are free and are not the defaults."""
    problems = []
    suggested = {name: port for name, port in ports.items() if port != defaults[name]}
    with ExitStack() as bound:
        for name, port in ports.items():
            try:
                bound.enter_context(socket.create_server((HOST, port)))
            except OSError as error:
                reason = (
                    "is already in use"
                    if error.errno == errno.EADDRINUSE
                    else f"cannot be used ({error.strerror})"
                )
                problems.append(f"Port {port} {reason}.")
                suggested[name] = _find_free_port(port, bound)
    if problems:
        variables = " ".join(f"{name}={suggested[name]}" for name in ports if name in suggested)
        raise CommandError(f"{' '.join(problems)} Try: {variables} make run")


def _find_free_port(taken: int, bound: ExitStack) -> int:
    candidates: list[int] = [
        *range(max(taken, MIN_UNPRIVILEGED_PORT) + 1, 65_536),
        *range(MIN_UNPRIVILEGED_PORT, taken),
    ]
    for port in candidates:
        try:
            bound.enter_context(socket.create_server((HOST, port)))
        except OSError:
            continue
        return port
    raise CommandError("No port on this machine is free.")
