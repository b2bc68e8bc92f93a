"""The diagnosis of the whole running system."""

from __future__ import annotations

from collections.abc import Iterable

from eventservice.kernel.findings import Finding
from eventservice.operators.health.cluster import ROLES, ClusterState, check_cluster, check_stuck_shards
from eventservice.operators.health.database import check_writing
from eventservice.operators.health.dispatch import blame_pause
from eventservice.operators.health.waiting_work import (
    check_brokers,
    check_lost_calls,
    check_outbox_lag,
    check_overdue,
    check_parked_events,
    check_timer_stores,
)
from orchestration.statistics.live_counts import LiveCounts
from outbox.status import OutboxStatus

MISSING_ROLES = {role.value for role in ROLES}
# Without writing there are no heartbeats and no leases, and nothing is started or published.
CONSEQUENCES = MISSING_ROLES | {
    "dead_node", "unowned_shards", "unowned_partitions", "stalled_chain", "stopped_cluster", "stuck_shards", "overdue_calls",
    "lost_calls", "waiting_events", "waiting_for_timer_store",
}  # fmt: skip


def diagnose(
    cluster: ClusterState, pulse: LiveCounts, outbox: OutboxStatus, process: str = "process"
) -> list[Finding]:
    """Return every finding on the running system, also those that are OK. `process` is as in `check_cluster`."""
    findings = [
        *check_cluster(cluster, process),
        check_stuck_shards(cluster),
        check_overdue(pulse.overdue, pulse.oldest_overdue, cluster),
        check_lost_calls(pulse.lost_count),
        check_outbox_lag(outbox),
        check_parked_events(outbox),
        *check_brokers(outbox),
        *check_timer_stores(cluster.now),
    ]
    return blame_pause(findings, cluster.pause)


def select_problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are not OK, errors first."""
    problems = [finding for finding in findings if not finding.is_ok]
    return sorted(problems, key=lambda finding: finding.severity.rank, reverse=True)


def blame_database(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings. If a role is missing because the database cannot be written, that replaces its consequences."""
    found = list(findings)
    if all(finding.is_ok for finding in found if finding.code in MISSING_ROLES):
        return found
    writing = check_writing()
    if writing.is_ok:
        return found
    return [writing, *(finding for finding in found if finding.code not in CONSEQUENCES)]
