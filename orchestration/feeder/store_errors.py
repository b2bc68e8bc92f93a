"""The errors of timer stores as errors of commands, in words for clients: what a store says of itself is for the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eventservice.kernel.errors import DomainError, Invalid
from eventservice.kernel.logging import get_logger
from timers.stores.port import OutcomeUnknown, StoreUnavailable, TimerRefused

log = get_logger(__name__)

# Members of a timer, as the messages of refusals and the API call them.
MEMBERS = ("id", "namespace", "payload")


class TimerStoreUnavailable(DomainError):
    """The store did nothing. The command can be repeated."""

    def __init__(self) -> None:
        message = "The timer store of this namespace is not available. Nothing was changed; try again."
        super().__init__("store_unavailable", message)


class TimerOutcomeUnknown(DomainError):
    """The store did not answer. The command may have taken effect, or may still take effect."""

    def __init__(self) -> None:
        message = (
            "The timer store of this namespace did not answer in time. It is unknown whether the request took effect: "
            "look the timer up, or send the request again."
        )
        super().__init__("outcome_unknown", message)


@contextmanager
def describing_store_errors(store: str) -> Iterator[None]:
    """Raise the errors of the store with this name as errors of commands."""
    try:
        yield
    except StoreUnavailable as error:
        log.warning("timer_store_unavailable", store=store, error=str(error))
        raise TimerStoreUnavailable from error
    except OutcomeUnknown as error:
        log.warning("timer_store_outcome_unknown", store=store, error=str(error))
        raise TimerOutcomeUnknown from error
    except TimerRefused as error:
        member, _, rule = str(error).partition(": ")
        if member not in MEMBERS:
            log.warning("timer_refused", store=store, error=str(error))
            member, rule = "payload", "cannot be stored by the timer store of this namespace"
        raise Invalid("invalid", "1 field is invalid.", errors={member: rule}) from error
