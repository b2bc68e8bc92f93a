"""One command for many calls: which ones it touches is fixed when it is shown, and then done in pieces.

A piece is a transaction. What is left travels, signed, with the page that says how far it is, so that nothing is kept
here; and each call is done once however often a page is sent: a call that has been canceled cannot be again, and
one that has been retried is not.
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

from eventservice.api.problems import FieldError, InvalidRequest, find_problem
from eventservice.api.schema.calls import find_tag_error
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.list_query import Asked, read_asked
from eventservice.console.calls.presenters.list_row import read_keys, rows_of
from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, DomainError
from eventservice.kernel.ids import new_id
from eventservice.operators import audit_log
from eventservice.operators.roles import Role
from orchestration import lifecycle
from orchestration.admission import PendingLimitReached
from orchestration.models import ServiceCall
from orchestration.queries import call_lists
from orchestration.queries import calls as call_queries
from orchestration.queries.call_lists import Order
from orchestration.queries.calls import CallKey, group_by_tenant
from orchestration.states import Status

MOST_CALLS = 10_000
# So many of a transaction: on SQLite the engine waits for it.
PIECE = 50
# A worker of the web tier is held for so long, and then the page comes back with what is left.
SECONDS = 5.0
GOOD_FOR_SECONDS = 3600
_signer = signing.TimestampSigner(salt="eventservice.console.bulk")


@dataclass(frozen=True, slots=True)
class Bulk:
    bulk_id: uuid.UUID
    kind: str
    calls: tuple[CallKey, ...]
    tag: str = ""
    confirmed: bool = False
    gone_through: int = 0
    done: int = 0
    left_alone: Mapping[str, int] | None = None  # how many, by why

    @property
    def is_over(self) -> bool:
        return self.gone_through >= len(self.calls)


class BulkKind(NamedTuple):
    """`run` acts on one call; it says whether there was anything to do, or raises a DomainError."""

    verb: str
    title: str  # with what is counted
    done: str
    applies_to: frozenset[str]
    about: str
    run: Callable[[Bulk, CallKey, uuid.UUID], bool]
    danger: bool = False


def _cancel(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    lifecycle.cancel(*key)
    return True


def _retry(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    lifecycle.retry(*key, correlation_id)
    return True


def _run_now(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    calls = ServiceCall.objects.for_tenant(key[0]).filter(service_call_id=key[1], due_at__lte=db_now())
    if calls.exists():
        raise Conflict("is_due", "It is due already.")
    lifecycle.reschedule(*key, None)
    return True


def _tag(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.add_tag(*key, bulk.tag)


def _untag(bulk: Bulk, key: CallKey, correlation_id: uuid.UUID) -> bool:
    return lifecycle.remove_tag(*key, bulk.tag)


ANY = frozenset(Status.values)
KINDS = {
    "cancel": BulkKind(
        "Cancel",
        "Cancel {}",
        "Canceled",
        frozenset({Status.SCHEDULED, Status.RUNNING}),
        "Scheduled calls are canceled at once; of Running ones the attempt under way is let end first.",
        _cancel,
        danger=True,
    ),
    "replay": BulkKind(
        "Retry",
        "Retry {}",
        "Retried",
        frozenset({Status.FAILED}),
        "Each gets a new call that asks for the same, due now. The failed ones stay as they are, and are not "
        "retried here a second time: if a new one fails too, that one can be.",
        _retry,
    ),
    "run-now": BulkKind(
        "Run now",
        "Run {} now",
        "Made due",
        frozenset({Status.SCHEDULED}),
        "They become due now, in place of their own time.",
        _run_now,
    ),
    "tag": BulkKind("Tag", "Tag {}", "Tagged", ANY, "They keep the tags that they have.", _tag),
    "untag": BulkKind(
        "Take a tag off", "Take a tag off {}", "Took the tag off", ANY, "Other tags stay.", _untag
    ),
}


# --- how it travels -----------------------------------------------------------------------------------------------


def start_bulk(kind: str, keys: Sequence[CallKey]) -> Bulk:
    """In the order of their ids, as every writer locks them."""
    return Bulk(new_id(), kind, tuple(sorted(keys)))


def sign(bulk: Bulk, user: Any) -> str:
    ids = {
        tenant_id.hex: b64encode(b"".join(one.bytes for one in ids)).decode()
        for tenant_id, ids in group_by_tenant(bulk.calls).items()
    }
    state = [bulk.confirmed, bulk.gone_through, bulk.done, bulk.left_alone or {}]
    return _signer.sign_object([user.pk, bulk.bulk_id.hex, bulk.kind, bulk.tag, state, ids], compress=True)


def unsign(text: str, user: Any) -> Bulk:
    """Raises Conflict for what is not this user's, or too old."""
    try:
        owner, bulk_id, kind, tag, state, ids = _signer.unsign_object(text, max_age=GOOD_FOR_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        owner, bulk_id, kind, tag, state, ids = None, "", "", "", [], {}
    if owner is None or owner != user.pk:
        raise Conflict("bulk_expired", "This page is too old to act on. Choose the calls again.")
    calls = [(uuid.UUID(tenant), one) for tenant, packed in ids.items() for one in _unpacked(packed)]
    return Bulk(uuid.UUID(bulk_id), kind, tuple(calls), tag, *state)


def _unpacked(packed: str) -> list[uuid.UUID]:
    raw = b64decode(packed)
    return [uuid.UUID(bytes=raw[at : at + 16]) for at in range(0, len(raw), 16)]


# --- doing it -----------------------------------------------------------------------------------------------------


def go_on(bulk: Bulk, user: Any, correlation_id: uuid.UUID, step: Callable[[Bulk], None]) -> Bulk:
    """Piece by piece until its time is up. `step` is told of each, so that an error takes nothing back that was said."""
    deadline = time.monotonic() + SECONDS
    while not bulk.is_over:
        bulk = _piece(bulk, user, correlation_id)
        step(bulk)
        if time.monotonic() > deadline:
            break
    return bulk


@retry_on_deadlock
def _piece(bulk: Bulk, user: Any, correlation_id: uuid.UUID) -> Bulk:
    keys = bulk.calls[bulk.gone_through : bulk.gone_through + PIECE]
    with transaction.atomic():
        if bulk.gone_through == 0 and not audit_log.list_actions_on(bulk.bulk_id, limit=1):
            audit_log.record_action(user, f"bulk-{bulk.kind}", subject=bulk.bulk_id, **_summary(bulk))
        whys = [_one(bulk, key, user, correlation_id) for key in keys]
    left_alone = Counter(bulk.left_alone or {}) + Counter(filter(None, whys))
    return replace(
        bulk,
        gone_through=bulk.gone_through + len(keys),
        done=bulk.done + whys.count(""),
        left_alone=dict(left_alone),
    )


def _summary(bulk: Bulk) -> dict[str, Any]:
    return {"calls": len(bulk.calls), **({"tag": bulk.tag} if bulk.tag else {})}


def _one(bulk: Bulk, key: CallKey, user: Any, correlation_id: uuid.UUID) -> str:
    """Why it was left alone; empty: it was not."""
    try:
        with transaction.atomic():
            if not KINDS[bulk.kind].run(bulk, key, correlation_id):
                return "done already"
            tag = {"tag": bulk.tag} if bulk.tag else {}
            audit_log.record_action(
                user, bulk.kind, tenant_id=key[0], subject=key[1], bulk=str(bulk.bulk_id), **tag
            )
    except PendingLimitReached:
        raise  # it stops the others too
    except DomainError as error:
        return WHYS.get(error.code, error.message)
    return ""


WHYS = {
    "wrong_state": "changed meanwhile",
    "not_found": "gone",
    "is_due": "due already",
    "tenant_inactive": "of a tenant that is not active",
    "replayed_before": "retried before",
    "too_many_tags": "with as many tags as there may be",
}


MOST_SHOWN = 10


class BulkPage(ConsoleView):
    nav = "calls"
    # A viewer has nothing to see here.
    read_role = Role.OPERATOR

    @property
    def list_address(self) -> str:
        """The list that the bulk was begun on, where it goes back to."""
        return self.next_url(reverse("console:calls"))

    def preview(
        self,
        bulk: Bulk,
        chosen: Mapping[str, int],
        *,
        retried: int = 0,
        more: bool = False,
        wrong: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """`chosen` says how they all stand, by status, and `retried` how many are left out for they have been retried;
        those that the command applies to are in the bulk.
        """
        kind, count = KINDS[bulk.kind], len(bulk.calls)
        context = {
            "bulk": bulk,
            "kind": kind,
            "title": f"{kind.title.format(said(count))}?" if count else f"{kind.verb}: nothing to do",
            "count": count,
            "button": kind.title.format(said(count)),
            "word": str(count),
            "danger": kind.danger,
            "action": reverse("console:calls-bulk-run"),
            "next": self.list_address,
            "token": sign(bulk, self.request.user),
            "breakdown": [
                {"status": status, "count": chosen[status], "applies": status in kind.applies_to}
                for status in Status.values
                if chosen.get(status)
            ],
            "retried": retried,
            "applies": [status for status in Status.values if status in kind.applies_to],
            "chosen": sum(chosen.values()) + retried,
            "more": more,
            "most": MOST_CALLS,
            "sample": rows_of(call_queries.list_summaries(bulk.calls[:MOST_SHOWN]), db_now()),
            "not_shown": max(0, count - MOST_SHOWN),
            "takes_tag": bulk.kind in ("tag", "untag"),
            "wrong": wrong or {},
            "now": db_now(),
        }
        return self.render(context, "console/calls/bulk.html", 400 if wrong else 200)


class Preview(BulkPage):
    def get(self, request: HttpRequest) -> HttpResponse:
        """All that match the filter of the address."""
        parameters = request.GET.copy()
        kind = _known("".join(parameters.pop("do", [])))
        parameters.pop("next", None)
        keys = _matching(read_asked(parameters))
        return self._of(kind, keys[:MOST_CALLS], more=len(keys) > MOST_CALLS)

    def post(self, request: HttpRequest) -> HttpResponse:
        """The selection, which no address would hold; or to all that match, which one does."""
        kind = _known(request.POST.get("do", ""))
        if request.POST.get("of") == "matching":
            return self._to_matching(kind)
        keys = read_keys(request.POST.getlist("call")[:MOST_CALLS])
        if not keys:
            raise Conflict("nothing_selected", "Select the calls first, or choose all that match.")
        return self._of(kind, keys)

    def _of(self, kind: str, keys: Sequence[CallKey], *, more: bool = False) -> HttpResponse:
        statuses = call_queries.list_statuses(keys)
        applied = [key for key in keys if statuses.get(key) in KINDS[kind].applies_to]
        before = call_queries.list_replayed(applied) if kind == "replay" else set()
        bulk = start_bulk(kind, [key for key in applied if key not in before])
        stand = Counter(status for key, status in statuses.items() if key not in before)
        return self.preview(bulk, stand, retried=len(before), more=more)

    def _to_matching(self, kind: str) -> HttpResponse:
        parameters = self.request.GET.copy()
        parameters.setlist("do", [kind])
        parameters.setlist("next", [self.list_address])
        return redirect_see_other(f"{reverse('console:calls-bulk')}?{parameters.urlencode()}")


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidRequest([FieldError("/query/do", "must be one of " + ", ".join(KINDS))])
    return kind


def _matching(asked: Asked) -> list[CallKey]:
    """One more than may be touched, if there are more."""
    return call_lists.list_keys(asked.checked().wanted, Order(), MOST_CALLS + 1)


class Run(BulkPage):
    def post(self, request: HttpRequest) -> HttpResponse:
        bulk = unsign(request.POST.get("bulk", ""), request.user)
        if not bulk.confirmed:
            tag = request.POST.get("tag", "").strip()
            if wrong := self._wrong(bulk, tag):
                stand = Counter(call_queries.list_statuses(bulk.calls).values())
                return self.preview(bulk, stand, wrong=wrong)
            bulk = replace(bulk, confirmed=True, tag=tag if bulk.kind in ("tag", "untag") else "")
        return self._go_on(bulk)

    def _wrong(self, bulk: Bulk, tag: str) -> dict[str, str]:
        wrong = {}
        if self.request.POST.get("word", "").strip().replace(",", "") != str(len(bulk.calls)):
            wrong["word"] = f"Type {len(bulk.calls)} to confirm. Nothing has been changed."
        if bulk.kind in ("tag", "untag") and (rule := find_tag_error(tag)):
            wrong["tag"] = f"The tag {rule}."
        return wrong

    def _go_on(self, bulk: Bulk) -> HttpResponse:
        reached = [bulk]
        try:
            go_on(bulk, self.request.user, self.request.correlation_id, reached.append)  # type: ignore[attr-defined]
        except (DomainError, OperationalError) as error:
            problem = find_problem(error)
            assert problem is not None  # noqa: S101 (these two are known to it)
            return self._progress(reached[-1], problem.status_code, problem.detail)
        if not reached[-1].is_over:
            return self._progress(reached[-1])
        self.report_success(outcome_of(reached[-1]))
        return self.redirect_back(reverse("console:calls"))

    def _progress(self, bulk: Bulk, status: int = 200, trouble: str = "") -> HttpResponse:
        context = {
            "bulk": bulk,
            "kind": KINDS[bulk.kind],
            "all": len(bulk.calls),
            "outcome": outcome_of(bulk),
            "trouble": trouble,
            "token": sign(bulk, self.request.user),
            "next": self.list_address,
        }
        return self.render(context, "console/calls/bulk_progress.html", status)


def said(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def outcome_of(bulk: Bulk) -> str:
    done = f"{KINDS[bulk.kind].done}: {said(bulk.done)}."
    whys = [f"{count:,} {why}" for why, count in sorted((bulk.left_alone or {}).items())]
    return f"{done} Left alone: {', '.join(whys)}." if whys else done
