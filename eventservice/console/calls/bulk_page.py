"""One command for many calls: shown first with what it will touch, confirmed by typing, and said as far as it went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.call_submission import wrong_tag
from eventservice.api.problems import FieldError, InvalidRequest, find_problem
from eventservice.console.calls import bulk_run
from eventservice.console.calls.bulk_run import KINDS, MOST_CALLS, Bulk
from eventservice.console.calls.list_query import Asked, read_asked
from eventservice.console.calls.list_rows import read_keys, rows_of
from eventservice.console.views import Page, see_other
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, DomainError
from eventservice.operators.roles import Role
from orchestration.queries import calls as call_queries
from orchestration.queries.calls import CallKey, Order
from orchestration.states import Status

MOST_SHOWN = 10


class BulkPage(Page):
    nav = "calls"
    # A viewer has nothing to see here.
    reads = Role.OPERATOR

    @property
    def list_address(self) -> str:
        """The list that the bulk was begun on, where it goes back to."""
        return self.next_or(reverse("console:calls"))

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
            "token": bulk_run.sign(bulk, self.request.user),
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
            "sample": rows_of(call_queries.listed(bulk.calls[:MOST_SHOWN]), db_now()),
            "not_shown": max(0, count - MOST_SHOWN),
            "takes_tag": bulk.kind in ("tag", "untag"),
            "wrong": wrong or {},
            "now": db_now(),
        }
        return self.show(context, "console/calls/bulk.html", 400 if wrong else 200)


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
        statuses = call_queries.statuses_of(keys)
        applied = [key for key in keys if statuses.get(key) in KINDS[kind].applies_to]
        before = call_queries.replayed(applied) if kind == "replay" else set()
        bulk = bulk_run.start(kind, [key for key in applied if key not in before])
        stand = Counter(status for key, status in statuses.items() if key not in before)
        return self.preview(bulk, stand, retried=len(before), more=more)

    def _to_matching(self, kind: str) -> HttpResponse:
        parameters = self.request.GET.copy()
        parameters.setlist("do", [kind])
        parameters.setlist("next", [self.list_address])
        return see_other(f"{reverse('console:calls-bulk')}?{parameters.urlencode()}")


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidRequest([FieldError("/query/do", "must be one of " + ", ".join(KINDS))])
    return kind


def _matching(asked: Asked) -> list[CallKey]:
    """One more than may be touched, if there are more."""
    return call_queries.keys_of(asked.checked().wanted, Order(), MOST_CALLS + 1)


class Run(BulkPage):
    def post(self, request: HttpRequest) -> HttpResponse:
        bulk = bulk_run.unsign(request.POST.get("bulk", ""), request.user)
        if not bulk.confirmed:
            tag = request.POST.get("tag", "").strip()
            if wrong := self._wrong(bulk, tag):
                stand = Counter(call_queries.statuses_of(bulk.calls).values())
                return self.preview(bulk, stand, wrong=wrong)
            bulk = replace(bulk, confirmed=True, tag=tag if bulk.kind in ("tag", "untag") else "")
        return self._go_on(bulk)

    def _wrong(self, bulk: Bulk, tag: str) -> dict[str, str]:
        wrong = {}
        if self.request.POST.get("word", "").strip().replace(",", "") != str(len(bulk.calls)):
            wrong["word"] = f"Type {len(bulk.calls)} to confirm. Nothing has been changed."
        if bulk.kind in ("tag", "untag") and (rule := wrong_tag(tag)):
            wrong["tag"] = f"The tag {rule}."
        return wrong

    def _go_on(self, bulk: Bulk) -> HttpResponse:
        reached = [bulk]
        try:
            bulk_run.go_on(bulk, self.request.user, self.request.correlation_id, reached.append)  # type: ignore[attr-defined]
        except (DomainError, OperationalError) as error:
            problem = find_problem(error)
            assert problem is not None  # noqa: S101 (these two are known to it)
            return self._progress(reached[-1], problem.status_code, problem.detail)
        if not reached[-1].is_over:
            return self._progress(reached[-1])
        self.say(outcome_of(reached[-1]))
        return self.back(reverse("console:calls"))

    def _progress(self, bulk: Bulk, status: int = 200, trouble: str = "") -> HttpResponse:
        context = {
            "bulk": bulk,
            "kind": KINDS[bulk.kind],
            "all": len(bulk.calls),
            "outcome": outcome_of(bulk),
            "trouble": trouble,
            "token": bulk_run.sign(bulk, self.request.user),
            "next": self.list_address,
        }
        return self.show(context, "console/calls/bulk_progress.html", status)


def said(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def outcome_of(bulk: Bulk) -> str:
    done = f"{KINDS[bulk.kind].done}: {said(bulk.done)}."
    whys = [f"{count:,} {why}" for why, count in sorted((bulk.left_alone or {}).items())]
    return f"{done} Left alone: {', '.join(whys)}." if whys else done
