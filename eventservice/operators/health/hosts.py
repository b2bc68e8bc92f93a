"""The findings on hosts: those to which many calls fail, and those that let calls wait for another attempt."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from eventservice.kernel.findings import Finding, Severity
from eventservice.operators.error_kinds import get_error_name
from eventservice.operators.formatting import format_count, format_share
from eventservice.tenants.directory import find_tenant_names
from orchestration.statistics.chart_data import FailingHost, count_succeeded_by_host, list_hosts_with_failures
from orchestration.statistics.hosts_in_trouble import (
    FailedCalls,
    PortOutcomes,
    RetryingHost,
    TargetErrors,
    estimate_succeeded,
    list_retrying_hosts,
)

MAX_FAILING_HOSTS = 5
# Hosts whose ports are looked at: more than are reported, because a port that works may hide one that does not.
MAX_EXAMINED_HOSTS = 10
# A host is failing if, of the calls to it that ended lately, at least so many and this share failed.
FAILING_HOST_PERIOD = timedelta(minutes=15)
MIN_FAILED_CALLS = 3
MIN_FAILED_SHARE = 0.25
# A host lets calls wait if at least so many wait for another attempt, and this share of those and of the calls that
# succeeded lately.
MIN_RETRYING_CALLS = 10
MIN_RETRYING_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class FailingHostFinding(Finding):
    """A target that fails, with what a page needs to list its failed calls."""

    tenant_id: uuid.UUID | None = None
    host: str = ""
    share: float = 0.0
    since: datetime | None = field(default=None)


@dataclass(frozen=True, slots=True)
class RetryingHostFinding(Finding):
    """A host that lets calls wait for another attempt, with what a page needs to list them."""

    tenant_id: uuid.UUID | None = None
    host: str = ""


def list_failing_hosts(tenant_id: uuid.UUID | None, now: datetime) -> list[FailingHostFinding]:
    """Return the ports of hosts to which many calls failed lately, those with the largest share of failures first.

    Each port is judged by numbers of its own, so that one that works hides none that does not.
    """
    since = now - FAILING_HOST_PERIOD
    hosts = list_hosts_with_failures(
        tenant_id, since, now, min_failed=MIN_FAILED_CALLS, limit=MAX_EXAMINED_HOSTS
    )
    names = find_tenant_names([host.tenant_id for host in hosts]) if hosts else {}
    failed_calls = {tenant: FailedCalls(tenant, since) for tenant in {host.tenant_id for host in hosts}}
    found = [
        _build_failing_host(host, port, names.get(host.tenant_id, ""), since)
        for host in hosts
        for port in _list_failing_ports(failed_calls[host.tenant_id], host)
    ]
    return sorted(found, key=lambda finding: -finding.share)[:MAX_FAILING_HOSTS]


def _list_failing_ports(failed_calls: FailedCalls, host: FailingHost) -> list[PortOutcomes]:
    failed, succeeded = host.outcomes.failed, host.outcomes.succeeded
    ports = failed_calls.list_ports(host.host, failed, succeeded)
    is_failing = failed >= MIN_FAILED_SHARE * (failed + succeeded)
    min_failed = 1 if is_failing else MIN_FAILED_CALLS
    failing = [port for port in ports if port.failed >= min_failed and port.share >= MIN_FAILED_SHARE]
    if is_failing and not failing:
        # The estimates are too rough to name a port.
        errors = replace(ports[0].errors, name=host.host, filter_value=host.host)
        return [PortOutcomes(errors, failed, succeeded)]
    return failing


def _build_failing_host(
    host: FailingHost, port: PortOutcomes, tenant: str, since: datetime
) -> FailingHostFinding:
    return FailingHostFinding(
        code="failing_host",
        severity=Severity.WARNING if port.succeeded else Severity.ERROR,
        text=f"{_name_target(port.errors)} is failing for {tenant or host.tenant_id}.",
        remedy=f"{_count_outcomes(host, port)}{_name_error('The most frequent error', port.errors)}",
        tenant_id=host.tenant_id,
        host=port.errors.filter_value,
        share=port.share,
        since=since,
    )


def _count_outcomes(host: FailingHost, port: PortOutcomes) -> str:
    """Say how many calls failed: of the port if its calls could be counted, otherwise of the host with all its ports."""
    failed, ended = host.outcomes.failed, host.outcomes.failed + host.outcomes.succeeded
    if (examined := port.examined) is None:
        where = ""
        failed, ended = port.failed, port.failed + port.succeeded
    else:
        where = f" to {host.host}, all ports together,"
    text = f"{failed:,} of {ended:,} calls{where} failed in the last 15 minutes ({format_share(failed / max(1, ended))})."
    if examined is None:
        return text
    text += f" Of {format_count(examined.failed, 'failure')} looked at, {examined.failed_at_port:,} were at this port"
    if examined.succeeded:
        text += (
            f"; of {format_count(examined.succeeded, 'success', 'successes')}, {examined.succeeded_at_port:,}"
        )
    return f"{text}."


def check_retrying_calls(tenant_id: uuid.UUID | None, now: datetime) -> list[Finding]:
    """Return a finding for each host that lets many calls wait for another attempt, or one that is OK."""
    found = list_retrying_hosts(tenant_id, min_calls=MIN_RETRYING_CALLS, limit=2 * MAX_FAILING_HOSTS)
    succeeded = count_succeeded_by_host(
        [(one.tenant_id, one.host) for one in found], now - FAILING_HOST_PERIOD, now
    )
    failing = [one for one in found if _lets_wait(one, succeeded.get((one.tenant_id, one.host), 0))]
    if not failing:
        return [Finding("retrying_calls", Severity.OK, "No host lets many calls wait for another attempt.")]
    names = find_tenant_names([one.tenant_id for one in failing])
    return [_build_retrying_host(one, names.get(one.tenant_id, "")) for one in failing[:MAX_FAILING_HOSTS]]


def _lets_wait(one: RetryingHost, succeeded: int) -> bool:
    """Return whether a port lets a large share of its calls wait, if so many calls to all ports of the host succeeded."""
    if one.host_count >= MIN_RETRYING_SHARE * (one.host_count + succeeded):
        return True
    own = estimate_succeeded(one.tenant_id, one.host, one.errors.name, succeeded)
    return one.count >= MIN_RETRYING_CALLS and one.count >= MIN_RETRYING_SHARE * (one.count + own)


def _build_retrying_host(one: RetryingHost, tenant: str) -> RetryingHostFinding:
    return RetryingHostFinding(
        code="retrying_calls",
        severity=Severity.WARNING,
        text=f"Calls of {tenant or one.tenant_id} to {_name_target(one.errors)} keep failing: {_count_waiting(one)}",
        remedy=f"They are retried by their policies.{_name_error('The most frequent error', one.errors)} Check the "
        "receiver. Once it works, you can run them now.",
        tenant_id=one.tenant_id,
        host=one.errors.filter_value,
    )


def _count_waiting(one: RetryingHost) -> str:
    least = "at least " if one.is_minimum else ""
    if one.examined is None:
        verb = "waits" if one.count == 1 else "wait"
        return f"{least}{one.count:,} {verb} for another attempt."
    at_port = round(one.examined * one.errors.share)
    return (
        f"{least}{one.host_count:,} to {one.host}, all ports together, wait for another attempt, and {at_port:,} of "
        f"{one.examined:,} that were looked at are to this port."
    )


def _name_target(target: TargetErrors) -> str:
    return target.name or "A host without a name"


def _name_error(label: str, errors: TargetErrors) -> str:
    name = get_error_name(errors.kind, errors.response_status)
    return f" {label}: {name}." if name else ""
