"""Whether this machine's ports are free, and which others are."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from django.core.management.base import CommandError

HOST = "127.0.0.1"
LEAST = 1024  # below, only root may


def refuse_taken(wanted: Mapping[str, int]) -> None:
    """Ports by the variables that choose them. Each is held while the others are tried: they must differ, too."""
    faults, others = [], {}
    with ExitStack() as held:
        for name, port in wanted.items():
            try:
                held.enter_context(socket.create_server((HOST, port)))
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                faults.append(f"Port {port} {'is taken' if taken else f'cannot be used ({error.strerror})'}.")
                others[name] = _free_one(port, held)
    if faults:
        chosen = " ".join(f"{name}={port}" for name, port in others.items())
        raise CommandError(f"{' '.join(faults)} Choose another: {chosen} make run")


def _free_one(unlike: int, held: ExitStack) -> int:
    candidates: list[int] = [*range(max(unlike, LEAST) + 1, 65_536), *range(LEAST, unlike)]
    for port in candidates:
        try:
            held.enter_context(socket.create_server((HOST, port)))
        except OSError:
            continue
        return port
    raise CommandError("No port of this machine is free.")
