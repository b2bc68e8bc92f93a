"""What other modules may use of execution."""

from execution.addresses import AddressPolicy
from execution.egress import Egress, Limits
from execution.history import attempts_of, last_attempt
from execution.log import (
    AttemptKey,
    OpenedAttempt,
    close_attempts,
    interrupt_attempts,
    open_attempts,
    orphaned_attempts,
)
from execution.models import METHODS
from execution.outcome import Attempt, Errored, ErrorKind, Outcome, Responded
from execution.redaction import mask, mask_named, mask_response, mask_sealed, open_sealed, seal
from execution.runner import Request, Signer, build_attempt, refusal
from execution.urls import BadHeader, BadUrl, check_headers, parse_target

__all__ = [
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
    "attempts_of",
    "build_attempt",
    "check_headers",
    "close_attempts",
    "interrupt_attempts",
    "last_attempt",
    "mask",
    "mask_named",
    "mask_response",
    "mask_sealed",
    "open_attempts",
    "open_sealed",
    "orphaned_attempts",
    "parse_target",
    "refusal",
    "seal",
]
