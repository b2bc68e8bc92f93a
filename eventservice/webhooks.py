"""How webhooks leave the house: by the same egress, and under the same rules, as the calls themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

from execution.public import Attempt, Egress, Errored, Outcome, Responded
from outbox.public import WebhookRequest, WebhookResult


class WebhookSender:
    """The outbox's `Send`: blocking, from several threads at a time. The egress starts with the first request."""

    def __init__(self, build_egress: Callable[[], Egress]) -> None:
        self._build_egress = build_egress
        self._egress: Egress | None = None
        self._lock = threading.Lock()

    def __call__(self, requests: Sequence[WebhookRequest]) -> list[WebhookResult]:
        # Each attempt's key is the future that waits for it.
        ends: list[Future[Outcome]] = [Future() for _ in requests]
        self._running_egress().send(
            Attempt(end, "POST", r.url, r.headers, r.body, r.timeout_seconds)
            for end, r in zip(ends, requests, strict=True)
        )
        return [_result(request, end.result()) for request, end in zip(requests, ends, strict=True)]

    def close(self) -> None:
        if self._egress is not None:
            self._egress.close()

    def _running_egress(self) -> Egress:
        with self._lock:
            if self._egress is None:
                self._egress = self._build_egress()
                threading.Thread(
                    target=self._pump, args=(self._egress,), name="webhooks", daemon=True
                ).start()
            return self._egress

    def _pump(self, egress: Egress) -> None:
        while True:
            for outcome in egress.collect(60.0):
                cast("Future[Outcome]", outcome.key).set_result(outcome)


def _result(request: WebhookRequest, outcome: Outcome) -> WebhookResult:
    match outcome:
        case Responded():
            return WebhookResult(request.key, outcome.status)
        case Errored():
            return WebhookResult(request.key, None, f"{outcome.kind}: {outcome.message}")
