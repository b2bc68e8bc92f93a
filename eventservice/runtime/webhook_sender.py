"""How webhooks leave the house: by the same egress, and under the same rules, as the calls themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from execution.egress import Egress
from execution.outcome import Attempt, Outcome, Responded
from outbox.publishers.webhook.delivery import WebhookRequest, WebhookResult


class WebhookSender:
    """The outbox's `Transport`. The egress starts with the first request."""

    def __init__(self, start_egress: Callable[[], Egress]) -> None:
        self._start_egress = start_egress
        self._egress: Egress | None = None

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        if self._egress is None:
            self._egress = self._start_egress()
        self._egress.send(
            Attempt(r.key, "POST", r.url, r.headers, r.body, r.timeout_seconds, r.tenant_id) for r in requests
        )

    def collect(self, timeout: float) -> list[WebhookResult]:
        return [_result(outcome) for outcome in self._egress.collect(timeout)] if self._egress else []

    def close(self) -> None:
        if self._egress is not None:
            self._egress.close()


def _result(outcome: Outcome) -> WebhookResult:
    if isinstance(outcome, Responded):
        return WebhookResult(outcome.key, outcome.status)
    return WebhookResult(outcome.key, None, f"{outcome.kind}: {outcome.message}")
