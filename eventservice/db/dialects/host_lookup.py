"""Looking up the address of a database server, with an end: the system's resolver may take half a minute to fail."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress

from eventservice.kernel.logging import get_logger

log = get_logger(__name__)

# Lookups that are in progress, and the results of the last ones, by host name.
_pending: dict[str, Future[list[str]]] = {}
_known: dict[str, list[str]] = {}
# Their threads do not exist in a child process.
os.register_at_fork(after_in_child=_pending.clear)


def is_host_name(host: str) -> bool:
    """Return whether it needs looking up: it is neither an address, nor the path of a socket, nor a list."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return False
    return bool(host) and not host.startswith(("/", "@")) and "," not in host


def look_up_host(host: str, max_seconds: float) -> list[str]:
    """Return the addresses of a host name: those that were found last, if the name servers do not answer.

    Raise OSError if there are none.
    """
    lookup = _pending.get(host)
    if lookup is None:
        lookup = _pending[host] = Future()
        threading.Thread(target=_look_up, args=(host, lookup), name="host-lookup", daemon=True).start()
    try:
        _known[host] = lookup.result(max_seconds)
    except OSError as error:  # the resolver's errors, and TimeoutError
        if host not in _known:
            raise OSError(
                f"the host name {host!r} could not be looked up within {max_seconds:g} s"
            ) from error
        log.warning("host_not_looked_up", host=host, used=_known[host])
    return _known[host]


def _look_up(host: str, lookup: Future[list[str]]) -> None:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        lookup.set_result(list(dict.fromkeys(str(address[0]) for *_, address in found)))
    except Exception as error:  # noqa: BLE001 (whoever waits for the lookup raises it)
        lookup.set_exception(error)
    finally:
        _pending.pop(host, None)
