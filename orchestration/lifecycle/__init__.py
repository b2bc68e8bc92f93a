"""The only writer of service calls. Each function is one transition, of one call or of a batch of calls.

A transition locks the rows it moves, writes them with an UPDATE that is guarded by what was read, and appends the events
in the same transaction. `next_seq` is both the number of the call's next event and the version that guards the write: it
grows with every transition, so no writer can act on a row that another has changed.

Locks are always taken in the same order, the timer before the call, so that writers wait for each other and do not
deadlock. (The timer of a Running call has been reached: only the writer that ends the call touches it, and that writer
holds the call's lock by then.)
"""

from eventservice.db.bulk import LostRace
from orchestration.lifecycle.attempts import (
    MAX_INTERRUPTIONS,
    RECORDING_GRACE,
    StartedCall,
    finish,
    list_overdue_attempts,
    reclaim,
    resolve_interrupted,
    resolve_orphaned,
    start,
)
from orchestration.lifecycle.commands import (
    add_tag,
    cancel,
    delete,
    edit,
    remove_tag,
    replay,
    reschedule,
    retry,
)
from orchestration.lifecycle.durable_timers import change_timer, delete_timer, set_timer
from orchestration.lifecycle.feeding import (
    abandon_takes,
    close_waiting,
    compute_start_before,
    compute_take_end,
    feed,
    follow_timer,
    list_waiting,
    release_ready,
    reschedule_waiting,
)
from orchestration.lifecycle.reencryption import reencrypt_calls
from orchestration.lifecycle.retention import prune_calls
from orchestration.lifecycle.submission import SubmissionConflict, Submitted, submit, submit_each

__all__ = [
    "LostRace",
    "MAX_INTERRUPTIONS",
    "RECORDING_GRACE",
    "StartedCall",
    "SubmissionConflict",
    "Submitted",
    "abandon_takes",
    "add_tag",
    "cancel",
    "change_timer",
    "close_waiting",
    "compute_start_before",
    "compute_take_end",
    "delete",
    "delete_timer",
    "edit",
    "feed",
    "finish",
    "follow_timer",
    "list_overdue_attempts",
    "list_waiting",
    "prune_calls",
    "reclaim",
    "reencrypt_calls",
    "release_ready",
    "remove_tag",
    "replay",
    "reschedule",
    "reschedule_waiting",
    "resolve_interrupted",
    "resolve_orphaned",
    "retry",
    "set_timer",
    "start",
    "submit",
    "submit_each",
]
