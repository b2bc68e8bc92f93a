"""The diagnosis of the running system: one module for each subject, and `diagnosis.py`, which builds the whole.

The console and `manage.py doctor` report these findings, and /readyz uses one of the checks. Both add failing webhook
endpoints, hosts that let calls wait, and tenants at their limits; the dashboard adds failing hosts, and doctor adds checks
of the installation.
"""

from eventservice.operators.health.cluster import (
    FORGOTTEN_AFTER,
    MAX_NAMED_NODES,
    ROLES,
    TAKEOVER_MARGIN,
    WEB_PROCESS,
    ClusterRole,
    ClusterState,
    check_cluster,
    check_role,
    check_shard_sizes,
    describe_node,
    describe_state,
    read_cluster,
)
from eventservice.operators.health.database import WritingFinding, check_writing, describe_remedy
from eventservice.operators.health.diagnosis import CONSEQUENCES, blame_database, diagnose, select_problems
from eventservice.operators.health.dispatch import REMOVE_SETTING, blame_pause, check_dispatch
from eventservice.operators.health.endpoints import FailingEndpointFinding, check_webhook_endpoints
from eventservice.operators.health.hosts import (
    FailingHostFinding,
    RetryingHostFinding,
    check_retrying_calls,
    list_failing_hosts,
)
from eventservice.operators.health.limits import LimitFinding, check_tenant_limits
from eventservice.operators.health.thresholds import (
    FAILED_SHARE,
    OUTBOX_LAG,
    OVERDUE,
    START_DELAY_MS,
)
from eventservice.operators.health.waiting_work import (
    check_brokers,
    check_outbox_lag,
    check_overdue,
    check_parked_events,
    check_starting,
    check_timer_stores,
)

__all__ = [
    "CONSEQUENCES",
    "ClusterRole",
    "ClusterState",
    "FAILED_SHARE",
    "FORGOTTEN_AFTER",
    "FailingEndpointFinding",
    "FailingHostFinding",
    "LimitFinding",
    "MAX_NAMED_NODES",
    "OUTBOX_LAG",
    "OVERDUE",
    "ROLES",
    "RetryingHostFinding",
    "START_DELAY_MS",
    "TAKEOVER_MARGIN",
    "WEB_PROCESS",
    "WritingFinding",
    "blame_database",
    "blame_pause",
    "check_brokers",
    "check_cluster",
    "REMOVE_SETTING",
    "check_dispatch",
    "check_outbox_lag",
    "check_overdue",
    "check_parked_events",
    "check_retrying_calls",
    "check_role",
    "check_shard_sizes",
    "check_starting",
    "check_timer_stores",
    "check_tenant_limits",
    "check_webhook_endpoints",
    "check_writing",
    "describe_node",
    "describe_remedy",
    "describe_state",
    "diagnose",
    "list_failing_hosts",
    "read_cluster",
    "select_problems",
]
