"""The commands for service calls: what the API and the console parse a request into."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from eventservice.db.bulk import to_json
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.url_rules import parse_target
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract

# An idempotency key consists of visible ASCII characters.
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The HTTP request to make. A `body` that is a string is sent as it is, anything else as JSON."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def host(self) -> str:
        return parse_target(self.url).host

    @property
    def body_bytes(self) -> int:
        """The approximate size: for a string, the number of its characters."""
        if self.body is None:
            return 0
        return len(self.body if isinstance(self.body, str) else to_json(self.body))


@dataclass(frozen=True, slots=True)
class SubmitServiceCall:
    """The command to submit one call. It is due at `due_at`, or after `delay`, or at once."""

    tenant_id: uuid.UUID
    name: str
    request: RequestSpec
    due_at: datetime | None = None  # None, or a time in the past: at once
    delay: timedelta | None = None  # instead of due_at: counted from the submission
    service_call_id: uuid.UUID = field(default_factory=new_id)
    id_was_given: bool = False
    tags: frozenset[str] = frozenset()
    namespace: str = DEFAULT_NAMESPACE
    external_id: str | None = None
    idempotency_key: str | None = None
    correlation_id: uuid.UUID = field(default_factory=new_id)
    retry_policy: RetryPolicy | None = None
    timeout_seconds: float = 30.0
    response_contract: ResponseContract = ResponseContract.STATUS
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    replay_of: uuid.UUID | None = None

    def compute_due_at(self, now: datetime) -> datetime:
        if self.delay is not None:
            return now + self.delay
        return max(now, self.due_at or now)

    @property
    def content_hash(self) -> str:
        """A hash of what a repeat under the same idempotency key must have in common with the first submission. For a
        replay that is the origin alone, because the origin's tags may have changed. It must not be stored, because the content includes secrets: see `orchestration.fingerprints`."""
        content: list[object] = [str(self.replay_of)] if self.replay_of else [
            self.id_was_given and str(self.service_call_id),
            self.name, self.request.method, self.request.url, self.request.headers, self.request.body,
            self.due_at and self.due_at.isoformat(), None if self.delay is None else self.delay.total_seconds(),
            sorted(self.tags), self.namespace, self.external_id,
            self.retry_policy and self.retry_policy.to_stored(), self.timeout_seconds,
            self.response_contract, self.delivery,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
