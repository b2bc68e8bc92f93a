"""Secret header values: sealed where they are stored, opened only to be sent, masked wherever they are shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from eventservice.kernel.secrets import decrypt, encrypt
from execution.outcome import Outcome, Responded

MASK = "••••••"
SECRET_NAMES = frozenset({"authorization", "cookie", "set-cookie", "proxy-authorization"})
SECRET_ENDINGS = ("-key", "-token", "-secret", "-password", "-signature")
# Ends like a secret and is none: it must be readable where attempts are compared.
PUBLIC_NAMES = frozenset({"idempotency-key"})


def is_secret(name: str, named_by_tenant: Collection[str] = ()) -> bool:
    name = name.lower()
    if name in PUBLIC_NAMES:
        return False
    return name in SECRET_NAMES or name in named_by_tenant or name.endswith(SECRET_ENDINGS)


def seal(headers: Mapping[str, str], named_by_tenant: Collection[str]) -> dict[str, Any]:
    """The headers as they are stored. A sealed value is an object, so that no text can be taken for one."""
    return {
        name: {"encrypted": encrypt(value)} if is_secret(name, named_by_tenant) else value
        for name, value in headers.items()
    }


def open_sealed(headers: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: decrypt(value["encrypted"]) if isinstance(value, dict) else value
        for name, value in headers.items()
    }


def mask(headers: Mapping[str, str], named_by_tenant: Collection[str]) -> dict[str, str]:
    """What a person may see of headers that have not been sealed yet."""
    return {name: MASK if is_secret(name, named_by_tenant) else value for name, value in headers.items()}


def mask_sealed(headers: Mapping[str, Any]) -> dict[str, str]:
    """What a person may see of stored headers."""
    return {name: MASK if isinstance(value, dict) else value for name, value in headers.items()}


def mask_named(outcome: Outcome, named_by_tenant: Collection[str]) -> Outcome:
    """The outcome without the values of the response headers that the tenant calls secret."""
    if not named_by_tenant or not isinstance(outcome, Responded):
        return outcome
    headers = tuple(
        (name, MASK if name.lower() in named_by_tenant else value) for name, value in outcome.headers
    )
    return outcome._replace(headers=headers)


def mask_response(
    headers: Collection[tuple[str, str]], named_by_tenant: Collection[str] = ()
) -> dict[str, str]:
    """A response's headers for the log; repeated ones are joined, as HTTP allows."""
    shown: dict[str, str] = {}
    for name, value in headers:
        value = MASK if is_secret(name, named_by_tenant) else value
        shown[name] = f"{shown[name]}, {value}" if name in shown else value
    return shown
