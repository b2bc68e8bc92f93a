"""What other modules may use of execution."""

from execution.addresses import AddressPolicy
from execution.egress import Egress, Limits
from execution.history import attempt_of, attempts_after, attempts_without_bodies, last_attempt
from execution.log import (
    AttemptKey,
    OpenedAttempt,
    close_attempts,
    interrupt_attempts,
    open_attempts,
    orphaned_attempts,
)
from execution.outcome import METHODS, Attempt, Errored, ErrorKind, Outcome, Responded, Timings
from execution.redaction import (
    MASK,
    mask,
    mask_response,
    mask_sealed,
    open_sealed,
    renew_sealed,
    seal,
    without_secrets,
)
from execution.runner import Request, Signer, build_attempt, refusal
from execution.urls import BadHeader, BadUrl, check_headers, is_token, parse_host, parse_target

__all__ = [
    "MASK",
    "METHODS",
    "AddressPolicy",
    "Attempt",
    "AttemptKey",
    "BadHeader",
    "BadUrl",
    "Egress",
    "ErrorKind",
    "Errored",
    "Limits",
    "OpenedAttempt",
    "Outcome",
    "Request",
    "Responded",
    "Signer",
    "Timings",
    "attempt_of",
    "attempts_after",
    "attempts_without_bodies",
    "build_attempt",
    "check_headers",
    "close_attempts",
    "interrupt_attempts",
    "is_token",
    "last_attempt",
    "mask",
    "mask_response",
    "mask_sealed",
    "open_attempts",
    "open_sealed",
    "orphaned_attempts",
    "parse_host",
    "parse_target",
    "refusal",
    "renew_sealed",
    "seal",
    "without_secrets",
]
