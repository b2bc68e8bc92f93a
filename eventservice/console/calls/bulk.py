"""One action for many calls: a preview that fixes which calls, a confirmation (typed if they are many), and a run in batches.

Each batch is a transaction. Between requests, the run travels as a signed form field, so the server stores nothing.
Sending a page twice is harmless: a canceled call cannot be canceled again, and a replayed call is not replayed again.
"""

from __future__ import annotations

import time
import uuid
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.core import signing
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.correlation import get_correlation_id
from eventservice.api.problems import FieldError, InvalidRequest, find_problem
from eventservice.api.schema.submissions import find_tag_error
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.list_query import parse_list_query
from eventservice.console.calls.presenters.list_row import build_list_rows, parse_call_keys
from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, DomainError
from eventservice.kernel.ids import new_id
from eventservice.operators import audit_log
from eventservice.operators.roles import Role
from orchestration import call_changes, lifecycle
from orchestration.admission import PendingLimitReached
from orchestration.feeder.store_errors import TimerOutcomeUnknown, TimerStoreUnavailable
from orchestration.models import ServiceCall
from orchestration.queries.call_lists import Order, list_keys
from orchestration.queries.calls import (
    CallKey,
    group_by_tenant,
    list_replayed,
    list_statuses,
    list_summaries,
)
from orchestration.states import Status

MAX_CALLS = 10_000
SAMPLE_SIZE = 10
# An action on more calls is confirmed by typing their number.
MAX_CALLS_UNTYPED = 20
# Small batches, because the engine waits for each of them on SQLite.
BATCH_SIZE = 50
# How long one request may occupy a web worker. The page then continues the run with another request.
MAX_SECONDS_PER_REQUEST = 5.0
TOKEN_LIFETIME_SECONDS = 3600
_signer = signing.TimestampSigner(salt="eventservice.console.bulk")


@dataclass(frozen=True, slots=True)
class BulkRun:
    """An action on fixed calls, and how far it is. `skipped` counts calls by the reason why they were skipped."""

    run_id: uuid.UUID
    action: str
    calls: tuple[CallKey, ...]
    tag: str = ""
    confirmed: bool = False
    processed: int = 0
    changed: int = 0
    skipped: Mapping[str, int] | None = None

    @property
    def is_finished(self) -> bool:
        return self.processed >= len(self.calls)


class BulkAction(NamedTuple):
    """`apply` acts on one call and returns whether anything changed; it raises a DomainError if it cannot."""

    verb: str
    title: str  # formatted with the number of calls, as is `outcome`
    outcome: str
    applies_to: frozenset[str]
    description: str
    apply: Callable[[BulkRun, CallKey, uuid.UUID], bool]
    is_dangerous: bool = False


def _cancel(run: BulkRun, key: CallKey, correlation_id: uuid.UUID) -> bool:
    call_changes.cancel(*key)
    return True


def _replay(run: BulkRun, key: CallKey, correlation_id: uuid.UUID) -> bool:
    lifecycle.retry(*key, correlation_id)
    return True


def _run_now(run: BulkRun, key: CallKey, correlation_id: uuid.UUID) -> bool:
    tenant_id, service_call_id = key
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    if calls.filter(due_at__lte=db_now()).exists():
        raise Conflict("is_due", "The call is already due.")
    call_changes.reschedule(*key, None)
    return True


def _add_tag(run: BulkRun, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.add_tag(*key, run.tag)


def _remove_tag(run: BulkRun, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.remove_tag(*key, run.tag)


ANY_STATUS = frozenset(Status.values)
ACTIONS = {
    "cancel": BulkAction(
        "Cancel",
        "Cancel {}",
        "Canceled {}",
        frozenset({Status.SCHEDULED, Status.RUNNING}),
        "Scheduled calls are canceled at once. Running attempts may finish; no further attempts will be made.",
        _cancel,
        is_dangerous=True,
    ),
    "replay": BulkAction(
        "Replay",
        "Replay {}",
        "Replayed {}",
        frozenset({Status.FAILED}),
        "A copy of each call runs now. The failed calls stay as they are. A call is replayed once; if its copy "
        "fails as well, replay the copy.",
        _replay,
    ),
    "run-now": BulkAction(
        "Run now",
        "Run {} now",
        "Rescheduled {} to now",
        frozenset({Status.SCHEDULED}),
        "The calls become due now instead of at their scheduled times.",
        _run_now,
    ),
    "tag": BulkAction("Add tag", "Tag {}", "Tagged {}", ANY_STATUS, "Existing tags are kept.", _add_tag),
    "untag": BulkAction(
        "Remove tag",
        "Remove a tag from {}",
        "Removed the tag from {}",
        ANY_STATUS,
        "Other tags are kept.",
        _remove_tag,
    ),
}
TAG_ACTIONS = frozenset({"tag", "untag"})

# Why a call was skipped, by the code of the error.
SKIP_REASONS = {
    "wrong_state": "changed in the meantime",
    "not_found": "deleted",
    "is_due": "already due",
    "timer_firing": "about to be sent",
    "tenant_inactive": "of an inactive tenant",
    "replayed_before": "already replayed",
    "too_many_tags": "with the maximum number of tags",
}
NOTHING_TO_DO = "already done"


# --- the token ----------------------------------------------------------------------------------------------------


def start_run(action: str, keys: Sequence[CallKey]) -> BulkRun:
    """Return a run over the calls in the order of their ids, in which every writer locks them."""
    return BulkRun(new_id(), action, tuple(sorted(keys)))


def sign_run(run: BulkRun, user: Any) -> str:
    ids = {
        tenant_id.hex: b64encode(b"".join(one.bytes for one in ids)).decode()
        for tenant_id, ids in group_by_tenant(run.calls).items()
    }
    progress = [run.confirmed, run.processed, run.changed, run.skipped or {}]
    return _signer.sign_object([user.pk, run.run_id.hex, run.action, run.tag, progress, ids], compress=True)


def load_run(token: str, user: Any) -> BulkRun:
    """Return the run of a token. Raise Conflict if the token is too old or was signed for another user."""
    try:
        owner, run_id, action, tag, progress, ids = _signer.unsign_object(
            token, max_age=TOKEN_LIFETIME_SECONDS
        )
    except (signing.BadSignature, ValueError, TypeError):
        owner, run_id, action, tag, progress, ids = None, "", "", "", [], {}
    if owner is None or owner != user.pk:
        raise Conflict("bulk_expired", "This page has expired. Select the calls again.")
    calls = [(uuid.UUID(tenant), one) for tenant, packed in ids.items() for one in _unpack_ids(packed)]
    return BulkRun(uuid.UUID(run_id), action, tuple(calls), tag, *progress)


def _unpack_ids(packed: str) -> list[uuid.UUID]:
    raw = b64decode(packed)
    return [uuid.UUID(bytes=raw[at : at + 16]) for at in range(0, len(raw), 16)]


# --- running ------------------------------------------------------------------------------------------------------


def continue_run(
    run: BulkRun, user: Any, correlation_id: uuid.UUID, report: Callable[[BulkRun], None]
) -> None:
    """Run batches until the time of one request is over. `report` is called after each, before an error can occur."""
    deadline = time.monotonic() + MAX_SECONDS_PER_REQUEST
    while not run.is_finished:
        run = _run_batch(run, user, correlation_id)
        report(run)
        if time.monotonic() > deadline:
            break


@retry_on_deadlock
def _run_batch(run: BulkRun, user: Any, correlation_id: uuid.UUID) -> BulkRun:
    keys = run.calls[run.processed : run.processed + BATCH_SIZE]
    with transaction.atomic():
        if run.processed == 0 and not audit_log.list_actions_on(run.run_id, limit=1):
            detail: dict[str, Any] = {"calls": len(run.calls), **_build_tag_detail(run)}
            audit_log.record_action(user, f"bulk-{run.action}", subject=run.run_id, **detail)
        skip_reasons = [_apply_to_call(run, key, user, correlation_id) for key in keys]
    return replace(
        run,
        processed=run.processed + len(keys),
        changed=run.changed + skip_reasons.count(""),
        skipped=dict(Counter(run.skipped or {}) + Counter(filter(None, skip_reasons))),
    )


def _build_tag_detail(run: BulkRun) -> dict[str, str]:
    return {"tag": run.tag} if run.tag else {}


def _apply_to_call(run: BulkRun, key: CallKey, user: Any, correlation_id: uuid.UUID) -> str:
    """Return the reason why the call was skipped, or an empty string."""
    try:
        with transaction.atomic():
            if not ACTIONS[run.action].apply(run, key, correlation_id):
                return NOTHING_TO_DO
            detail = {"bulk": str(run.run_id), **_build_tag_detail(run)}
            audit_log.record_action(user, run.action, tenant_id=key[0], subject=key[1], **detail)
    except (PendingLimitReached, TimerStoreUnavailable, TimerOutcomeUnknown):
        raise  # it stops the whole run, which can be continued later
    except DomainError as error:
        return SKIP_REASONS.get(error.code, error.message)
    return ""


# --- pages --------------------------------------------------------------------------------------------------------


class BulkView(ConsoleView):
    nav = "calls"
    read_role = Role.OPERATOR

    @property
    def list_url(self) -> str:
        """The list on which the action was started."""
        return self.get_next_url(reverse("console:calls"))

    def render_preview(
        self,
        run: BulkRun,
        chosen: Mapping[str, int],
        *,
        replayed: int = 0,
        has_more: bool = False,
        errors: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Render the confirmation. `chosen` counts the chosen calls by status, `replayed` those already replayed."""
        action, count = ACTIONS[run.action], len(run.calls)
        title = action.title.format(format_count(count))
        now = db_now()
        context = {
            "bulk_action": action,
            "title": f"{title}?" if count else f"{action.verb}: nothing to do",
            "count": count,
            "button": title,
            "word": str(count) if needs_typed_number(run) else "",
            "danger": action.is_dangerous,
            "action": reverse("console:calls-bulk-run"),
            "next": self.list_url,
            "token": sign_run(run, self.request.user),
            "breakdown": [
                {"status": status, "count": chosen[status], "applies": status in action.applies_to}
                for status in Status.values
                if chosen.get(status)
            ],
            "replayed": replayed,
            "applies_to": [status for status in Status.values if status in action.applies_to],
            "chosen_count": sum(chosen.values()) + replayed,
            "has_more": has_more,
            "max_calls": MAX_CALLS,
            "sample": build_list_rows(list_summaries(run.calls[:SAMPLE_SIZE]), now),
            "not_shown": max(0, count - SAMPLE_SIZE),
            "takes_tag": run.action in TAG_ACTIONS,
            "errors": errors or {},
            "now": now,
        }
        return self.render(context, "console/calls/bulk.html", 400 if errors else 200)


class BulkPreview(BulkView):
    def get(self, request: HttpRequest) -> HttpResponse:
        """Preview the action on all calls that match the filters in the URL."""
        parameters = request.GET.copy()
        action = _parse_action("".join(parameters.pop("do", [])))
        parameters.pop("next", None)
        query = parse_list_query(parameters)
        query.raise_if_invalid()
        keys = list_keys(query.filters, Order(), MAX_CALLS + 1)
        return self._preview(action, keys[:MAX_CALLS], has_more=len(keys) > MAX_CALLS)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Preview the action on the selected calls, which do not fit in a URL, or redirect to all that match."""
        action = _parse_action(request.POST.get("do", ""))
        if request.POST.get("of") == "matching":
            return self._redirect_to_matching(action)
        keys = parse_call_keys(request.POST.getlist("call")[:MAX_CALLS])
        if not keys:
            raise Conflict("nothing_selected", "Select calls first, or choose all matching calls.")
        return self._preview(action, keys)

    def _preview(self, action: str, keys: Sequence[CallKey], *, has_more: bool = False) -> HttpResponse:
        statuses = list_statuses(keys)
        applicable = [key for key in keys if statuses.get(key) in ACTIONS[action].applies_to]
        replayed = list_replayed(applicable) if action == "replay" else set()
        run = start_run(action, [key for key in applicable if key not in replayed])
        chosen = Counter(status for key, status in statuses.items() if key not in replayed)
        return self.render_preview(run, chosen, replayed=len(replayed), has_more=has_more)

    def _redirect_to_matching(self, action: str) -> HttpResponse:
        parameters = self.request.GET.copy()
        parameters.setlist("do", [action])
        parameters.setlist("next", [self.list_url])
        return redirect_see_other(f"{reverse('console:calls-bulk')}?{parameters.urlencode()}")


def _parse_action(name: str) -> str:
    if name not in ACTIONS:
        raise InvalidRequest([FieldError("/query/do", "must be one of " + ", ".join(ACTIONS))])
    return name


class BulkRunPage(BulkView):
    def post(self, request: HttpRequest) -> HttpResponse:
        run = load_run(request.POST.get("bulk", ""), request.user)
        if not run.confirmed:
            tag = request.POST.get("tag", "").strip()
            if errors := self._validate_confirmation(run, tag):
                statuses = Counter(list_statuses(run.calls).values())
                return self.render_preview(run, statuses, errors=errors)
            run = replace(run, confirmed=True, tag=tag if run.action in TAG_ACTIONS else "")
        return self._continue(run)

    def _validate_confirmation(self, run: BulkRun, tag: str) -> dict[str, str]:
        errors = {}
        if needs_typed_number(run) and self.request.POST.get("word", "").strip().replace(",", "") != str(
            len(run.calls)
        ):
            errors["word"] = f"Type {len(run.calls)} to confirm. Nothing has been changed."
        if run.action in TAG_ACTIONS and (rule := find_tag_error(tag)):
            errors["tag"] = f"The tag {rule}."
        return errors

    def _continue(self, run: BulkRun) -> HttpResponse:
        reports = [run]
        try:
            continue_run(run, self.request.user, get_correlation_id(self.request), reports.append)
        except (DomainError, OperationalError) as error:
            problem = find_problem(error)
            assert problem is not None  # noqa: S101 (both kinds of errors have one)
            return self._render_progress(reports[-1], status=problem.status_code, error=problem.detail)
        if not reports[-1].is_finished:
            return self._render_progress(reports[-1])
        self.report_success(format_outcome(reports[-1]))
        return self.redirect_back(reverse("console:calls"))

    def _render_progress(self, run: BulkRun, *, status: int = 200, error: str = "") -> HttpResponse:
        context = {
            "run": run,
            "bulk_action": ACTIONS[run.action],
            "total": len(run.calls),
            "outcome": format_outcome(run),
            "error": error,
            "token": sign_run(run, self.request.user),
            "next": self.list_url,
        }
        return self.render(context, "console/calls/bulk_progress.html", status)


def needs_typed_number(run: BulkRun) -> bool:
    return len(run.calls) > MAX_CALLS_UNTYPED


def format_count(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def format_outcome(run: BulkRun) -> str:
    changed = ACTIONS[run.action].outcome.format(format_count(run.changed)) + "."
    reasons = [f"{count:,} {reason}" for reason, count in sorted((run.skipped or {}).items())]
    return f"{changed} Skipped: {', '.join(reasons)}." if reasons else changed
