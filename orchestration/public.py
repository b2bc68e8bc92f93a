"""What other modules may use of orchestration."""

from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.conductor import Engine, EngineLimits, Pass, resolve_stuck
from orchestration.lifecycle import Submitted, cancel, prune_calls, reschedule, submit
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract, Status
from orchestration.statistics import Statistics, statistics

__all__ = [
    "Delivery",
    "Engine",
    "EngineLimits",
    "Pass",
    "RequestSpec",
    "ResponseContract",
    "RetryPolicy",
    "ServiceCall",
    "ServiceCallTag",
    "Status",
    "Statistics",
    "SubmitServiceCall",
    "Submitted",
    "cancel",
    "prune_calls",
    "reschedule",
    "resolve_stuck",
    "statistics",
    "submit",
]
