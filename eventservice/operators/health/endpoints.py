"""The findings on webhook endpoints that fail, recover, or have disabled themselves."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.text import end_sentence
from eventservice.operators.formatting import format_ago, format_duration, format_second
from eventservice.tenants.directory import find_tenant_names
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.recovery import (
    EndpointFailure,
    GoneEndpoint,
    list_failing_endpoints,
    list_gone_endpoints,
)

MAX_FAILING_ENDPOINTS = 5


@dataclass(frozen=True, slots=True)
class FailingEndpointFinding(Finding):
    """A webhook endpoint that fails or has disabled itself, with what a page needs to link to it."""

    tenant_id: uuid.UUID | None = None
    endpoint_id: uuid.UUID | None = None


def check_webhook_endpoints(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each webhook endpoint that keeps failing or is disabled by its own answer, of one tenant or of
    all, and one that is OK if none keeps failing."""
    failures = list_failing_endpoints(tenant_id, MAX_FAILING_ENDPOINTS, MAX_COUNTED)
    gone = list_gone_endpoints(tenant_id, MAX_FAILING_ENDPOINTS)
    endpoints = [*(failure.endpoint for failure in failures), *(found.endpoint for found in gone)]
    names = find_tenant_names([endpoint.tenant_id for endpoint in endpoints])
    failing: list[Finding] = [
        _build_failing_endpoint(failure, names.get(failure.endpoint.tenant_id, ""), now)
        for failure in failures
    ]
    return [
        *(failing or [Finding("failing_endpoint", Severity.OK, "No webhook endpoint is failing.")]),
        *(_build_gone_endpoint(found, names.get(found.endpoint.tenant_id, "")) for found in gone),
    ]


def _build_gone_endpoint(gone: GoneEndpoint, tenant: str) -> FailingEndpointFinding:
    at = f" at {format_second(gone.disabled_at)}" if gone.disabled_at else ""
    since = gone.disabled_at or gone.endpoint.created_at
    were = "delivery was" if gone.given_up == 1 else "deliveries were"
    return _build_endpoint_finding(
        "disabled_endpoint",
        gone.endpoint,
        tenant,
        f"was disabled{at} because it answered 410 Gone; {gone.given_up:,} {were} given up.",
        "If its receiver is back, enable it and use Resend failed (`manage.py webhook enable "
        f"{gone.endpoint.endpoint_id}`, then `manage.py webhook retry --failed {gone.endpoint.endpoint_id}`). Later events: `manage.py webhook catch-up "
        f"{gone.endpoint.endpoint_id} --since {since:%Y-%m-%dT%H:%M:%SZ}`. Otherwise delete the endpoint.",
    )


def _build_failing_endpoint(failure: EndpointFailure, tenant: str, now: datetime) -> FailingEndpointFinding:
    if failure.accepted_at:
        still = "delivery still waits" if failure.pending == 1 else "deliveries still wait"
        return _build_endpoint_finding(
            "failing_endpoint",
            failure.endpoint,
            tenant,
            f"is recovering: it accepted a delivery {format_ago(failure.accepted_at, now)}, "
            f"{format_capped(failure.pending)} {still}.",
            "They are sent by themselves within 6 hours. To send them now, use Retry now on its page, or `manage.py "
            f"webhook retry {failure.endpoint.endpoint_id}`. The last error of those that failed: "
            f"{end_sentence(failure.reason)}",
        )
    wait = "delivery waits" if failure.pending == 1 else "deliveries wait"
    return _build_endpoint_finding(
        "failing_endpoint",
        failure.endpoint,
        tenant,
        f"is failing: {format_capped(failure.pending)} {wait}, the oldest failing one for "
        f"{format_duration(now - failure.since)}.",
        f"Its last error: {end_sentence(failure.reason)} Deliveries are retried; correct the receiver, or disable the endpoint.",
    )


def _build_endpoint_finding(
    code: str, endpoint: WebhookEndpoint, tenant: str, what: str, remedy: str
) -> FailingEndpointFinding:
    """Return the warning whose text names the endpoint and goes on with `what`."""
    # The rest of the URL may be secret.
    authority = urlsplit(endpoint.url).netloc.rpartition("@")[2]
    return FailingEndpointFinding(
        code=code,
        severity=Severity.WARNING,
        text=f"The webhook endpoint {authority} of {tenant or endpoint.tenant_id} {what}",
        remedy=remedy,
        tenant_id=endpoint.tenant_id,
        endpoint_id=endpoint.endpoint_id,
    )
