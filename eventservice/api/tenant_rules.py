"""What may be said of tenants, their namespaces and their keys: the same for a JSON body and for the console's forms."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from eventservice.api.fields import Fields, wrong_text
from eventservice.api.problems import FieldError
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.tenants.keys import MAX_LIFETIME
from eventservice.tenants.models import DEFAULT_SHARDS, ApiKey, name_rule
from execution.url_rules import BadUrl, is_header_name, parse_host

NAME = re.compile(name_rule.regex)
NAME_RULE = str(name_rule.message)
SIGNING_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,128}={0,2}")
# Member, column, and the most that it may be.
NUMBERS = (
    ("maxInFlight", "max_in_flight", 100_000),
    ("maxPending", "max_pending", 100_000_000),
    ("requestsPerMinute", "requests_per_minute", 100_000_000),
)
LONGEST_LISTED = 253
LISTS = (("allowedHosts", "allowed_hosts"), ("secretHeaders", "secret_headers"))
HOST_RULE = "must be a host name or address, without scheme, port or *"
HEADER_RULE = "must be the whole name of a header, such as X-Session, without : or *"
LONGEST_OVERLAP = 30 * 86_400.0
DEFAULT_OVERLAP = 86_400.0


def read_name(fields: Fields) -> Any:
    return fields.matching("name", NAME, NAME_RULE)


def read_limits(fields: Fields) -> dict[str, Any]:
    """The columns to change: of what is there, and of nothing else."""
    changes: dict[str, Any] = {}
    if "active" in fields:
        changes["active"] = fields.boolean("active")
    for name, column, most in NUMBERS:
        if name in fields:
            changes[column] = fields.integer(name, least=1, most=most)
    for name, column in LISTS:
        if name in fields:
            changes[column] = fields.texts(name, most=200, longest=LONGEST_LISTED, required=True)
    if "allowedHosts" in fields:
        changes["allowed_hosts"] = _hosts(fields, changes["allowed_hosts"])
    for index, name in enumerate(changes.get("secret_headers", ())):
        if not wrong_text(name, LONGEST_LISTED) and not is_header(name):
            fields.faults.append(FieldError(f"{fields.at}/secretHeaders/{index}", HEADER_RULE))
    if "signingSecret" in fields:
        rule = 'whsec_ and the base64 of 24 to 96 random bytes, or ""'
        given = fields.matching("signingSecret", re.compile(f"(?:{SIGNING_SECRET.pattern})?"), rule, "")
        changes["signing_secret"] = given
    return changes


def is_header(name: str) -> bool:
    """A name may have a `*`, and whoever writes one means all names that begin so: there is no such rule."""
    return is_header_name(name) and "*" not in name


def _hosts(fields: Fields, given: list[Any]) -> list[str]:
    """As the hosts of URLs are read, for these are what they are compared with."""
    hosts = []
    for index, text in enumerate(given):
        if wrong_text(text, LONGEST_LISTED):
            continue  # which has been said
        try:
            hosts.append(parse_host(text))
        except BadUrl:
            fields.faults.append(FieldError(f"{fields.at}/allowedHosts/{index}", HOST_RULE))
    return hosts


def read_namespace(fields: Fields, default: int | None = DEFAULT_SHARDS) -> tuple[Any, Any]:
    name = read_name(fields)
    return name, fields.integer("numShards", default, least=1, most=MAX_SHARDS)


def read_key(fields: Fields) -> tuple[str, list[str], datetime | None]:
    """A new key's name, its scopes, and when it expires."""
    name = fields.text("name", "", most=100)
    scopes = _read_scopes(fields)
    expires_at: datetime | None = fields.instant("expiresAt", None)
    if expires_at is not None and not (now := db_now()) < expires_at <= now + MAX_LIFETIME:
        fields.fault("expiresAt", f"must be in the future, and within {MAX_LIFETIME.days} days from now")
    return name, scopes, expires_at


def read_overlap(fields: Fields) -> timedelta:
    """How long the old key goes on."""
    return timedelta(seconds=fields.duration("overlap", DEFAULT_OVERLAP, most=LONGEST_OVERLAP))


def name_taken(name: str) -> Conflict:
    return Conflict("already_exists", f"A tenant {name!r} exists.", errors={"name": "must be new"})


def _read_scopes(fields: Fields) -> list[str]:
    scopes = fields.texts("scopes", most=3, longest=8, required=True)
    texts = set(map(str, scopes))
    if "scopes" in fields and not texts <= set(ApiKey.Scope.values):
        fields.fault("scopes", "must be of " + ", ".join(ApiKey.Scope.values))
    if scopes == [] and fields.value("scopes") == []:
        fields.fault("scopes", "must not be empty")
    return sorted(texts)
