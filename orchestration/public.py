"""What other modules may use of orchestration."""

from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.conductor import Engine, Pass, resolve_stuck
from orchestration.events import EventType
from orchestration.in_flight import EngineLimits
from orchestration.lifecycle import (
    StartedCall,
    Submitted,
    cancel,
    finish,
    prune_calls,
    reencrypt_calls,
    replay,
    reschedule,
    start,
    submit,
)
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.pulse import LostCall, Pulse, add_latest, has_calls, pulse
from orchestration.retries import RetryPolicy
from orchestration.rollup import recount, roll_up
from orchestration.sealed import scheduled_secrets
from orchestration.selectors import pending_of
from orchestration.states import FAVORITE, Delivery, ResponseContract, Status
from orchestration.statistics import Statistics, statistics
from orchestration.trends import (
    SPANS,
    Counted,
    FailingHost,
    Outcomes,
    Share,
    Slice,
    Span,
    by_host,
    by_tenant,
    counted,
    failing_hosts,
    lateness,
    slices,
)

__all__ = [
    "Counted",
    "Delivery",
    "Engine",
    "EngineLimits",
    "EventType",
    "FAVORITE",
    "FailingHost",
    "LostCall",
    "Outcomes",
    "Pass",
    "Pulse",
    "RequestSpec",
    "ResponseContract",
    "RetryPolicy",
    "SPANS",
    "ServiceCall",
    "ServiceCallTag",
    "Share",
    "Slice",
    "Span",
    "StartedCall",
    "Statistics",
    "Status",
    "SubmitServiceCall",
    "Submitted",
    "add_latest",
    "by_host",
    "by_tenant",
    "cancel",
    "counted",
    "failing_hosts",
    "finish",
    "has_calls",
    "lateness",
    "pending_of",
    "prune_calls",
    "pulse",
    "recount",
    "reencrypt_calls",
    "replay",
    "reschedule",
    "resolve_stuck",
    "roll_up",
    "scheduled_secrets",
    "slices",
    "start",
    "statistics",
    "submit",
]
