"""Actions over the rows of a list: a domain command for each, asked first, in the action log, and told truly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import OperationalError
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

from eventservice.adminsite.change_lists import add_tenant_names
from eventservice.adminsite.composite_pk import format_key, parse_key
from eventservice.kernel.errors import DomainError
from eventservice.kernel.ids import new_id
from eventservice.operators.audit_log import run_audited

# Of one request, which makes a transaction for each row.
MAX_ROWS = 500
MAX_LISTED = 10
MAX_REASONS = 5


@dataclass(frozen=True)
class RowAction:
    """What Django's admin needs of an action, and how it is done to one row.

    `command` does it, and says in a word what the row now is; when it raises a DomainError the row is as it was.
    An action without a `question` is harmless.
    """

    name: str  # in the action log too
    short_description: str
    command: Callable[[HttpRequest, Any], str]
    question: str = ""
    permission: str = "operate"
    do_not_call_in_templates = True

    @property
    def __name__(self) -> str:
        return self.name.replace(" ", "_")

    @property
    def allowed_permissions(self) -> tuple[str, ...]:
        return (self.permission,)

    def __call__(
        self, model_admin: Any, request: HttpRequest, texts: Sequence[str], matching: Any = None
    ) -> Any:
        """None: it has been done. Otherwise the page that asks whether it shall be."""
        rows = fetch_rows(model_admin, request, texts)
        if self.question and "confirmed" not in request.POST:
            return self._ask(model_admin, request, rows, matching)
        self._tell(request, *self._run(model_admin, request, rows), len(texts) - len(rows))
        return None

    def _ask(
        self, model_admin: Any, request: HttpRequest, rows: list[Any], matching: Any
    ) -> HttpResponseBase:
        context = {
            **model_admin.admin_site.each_context(request),
            "title": self.short_description,
            "opts": model_admin.opts,
            "action": self,
            "rows": add_tenant_names(rows[:MAX_LISTED]),
            "more": max(0, len(rows) - MAX_LISTED),
            "keys": [format_key(row) for row in rows],
            "count": len(rows),
            "matching": matching,
            "checkbox": ACTION_CHECKBOX_NAME,
            "media": model_admin.media,
            # Of this page: what is sent twice can be told from what is asked for twice.
            "confirmed": new_id(),
        }
        return TemplateResponse(request, "admin/confirm_action.html", context)

    def _run(
        self, model_admin: Any, request: HttpRequest, rows: list[Any]
    ) -> tuple[Counter[str], Counter[str]]:
        done: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for number, row in enumerate(rows):
            try:
                done[self._act(model_admin, request, row)] += 1
            except DomainError as error:
                refused[error.message] += 1
            except OperationalError:
                # It will not answer for the next row either.
                refused["The database did not answer in time. Try these again."] += len(rows) - number
                break
        return done, refused

    def _act(self, model_admin: Any, request: HttpRequest, row: Any) -> str:
        return run_audited(
            request.user,
            self.name,
            lambda: self.command(request, row),
            tenant_id=getattr(row, "tenant_id", None),
            subject=model_admin.get_audit_subject(row),
        )

    def _tell(self, request: HttpRequest, done: Counter[str], refused: Counter[str], gone: int) -> None:
        parts = [f"{count:,} {word}" for word, count in done.most_common()]
        parts += [f"{count:,} refused: “{reason}”" for reason, count in refused.most_common(MAX_REASONS)]
        others = sum(refused.values()) - sum(count for _, count in refused.most_common(MAX_REASONS))
        parts += [f"{others:,} refused for other reasons"] if others else []
        parts += [f"{gone:,} not there any more"] if gone > 0 else []
        failed = bool(refused) or gone > 0
        level = messages.SUCCESS if not failed else messages.WARNING if done else messages.ERROR
        messages.add_message(request, level, ", ".join(parts) or "Nothing was chosen.")


def fetch_rows(model_admin: Any, request: HttpRequest, texts: Sequence[str]) -> list[Any]:
    """The rows of these keys, in chunks that share all but the last column: `pk__in` would be an OR of every key."""
    chunks: dict[tuple[Any, ...], list[Any]] = {}
    for text in dict.fromkeys(texts[:MAX_ROWS]):
        if key := parse_key(model_admin.model, text):
            *first, (_, last) = key.items()
            chunks.setdefault(tuple(first), []).append(last)
    column = model_admin.opts.pk_fields[-1].attname
    every = model_admin.get_queryset(request).order_by().defer(*model_admin.deferred_columns)
    found = {
        format_key(row): row
        for first, lasts in chunks.items()
        for row in every.filter(**dict(first), **{f"{column}__in": lasts})
    }
    return [found[text] for text in texts if text in found]
