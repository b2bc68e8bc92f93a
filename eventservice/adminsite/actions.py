"""Actions on the selected rows of a list: each row gets a domain command, an audit log entry and a truthful message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import OperationalError
from django.db.models import Model
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

from eventservice.adminsite.change_lists import add_tenant_names
from eventservice.adminsite.composite_pk import format_key, parse_key
from eventservice.kernel.errors import DomainError
from eventservice.kernel.ids import new_id
from eventservice.operators.audit_log import run_audited

if TYPE_CHECKING:
    from eventservice.adminsite.model_admin import RoleAdmin

# The rows of one request, which runs a transaction for each.
MAX_ROWS = 500
MAX_LISTED = 10
MAX_REASONS = 5


@dataclass(frozen=True)
class RowAction:
    """An action for `ModelAdmin.actions` that runs a command on each selected row.

    `command` returns what happened to the row, in a word or two. If it raises a DomainError, the row is unchanged.
    An action with a `question` asks for confirmation first.
    """

    name: str  # also in the audit log
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
        self,
        model_admin: RoleAdmin[Model],
        request: HttpRequest,
        texts: Sequence[str],
        matching: int | None = None,
    ) -> HttpResponseBase | None:
        """Run the action and return None, or return the confirmation page."""
        rows = fetch_rows(model_admin, request, texts)
        if self.question and "confirmed" not in request.POST:
            return self._ask(model_admin, request, rows, matching)
        self._tell(request, *self._run(model_admin, request, rows), len(texts) - len(rows))
        return None

    def _ask(
        self, model_admin: RoleAdmin[Model], request: HttpRequest, rows: list[Model], matching: int | None
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
            # Identifies this page, so that a repeated submission can be recognized.
            "confirmed": new_id(),
        }
        return TemplateResponse(request, "admin/confirm_action.html", context)

    def _run(
        self, model_admin: RoleAdmin[Model], request: HttpRequest, rows: list[Model]
    ) -> tuple[Counter[str], Counter[str]]:
        done: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for number, row in enumerate(rows):
            try:
                done[self._act(model_admin, request, row)] += 1
            except DomainError as error:
                refused[error.message] += 1
            except OperationalError:
                # The database would not answer for the next row either.
                refused["The database did not answer in time. Try again with these rows."] += (
                    len(rows) - number
                )
                break
        return done, refused

    def _act(self, model_admin: RoleAdmin[Model], request: HttpRequest, row: Model) -> str:
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
        parts += [f"{gone:,} no longer exist"] if gone > 0 else []
        failed = bool(refused) or gone > 0
        level = messages.SUCCESS if not failed else messages.WARNING if done else messages.ERROR
        messages.add_message(request, level, ", ".join(parts) or "No rows were selected.")


def fetch_rows(model_admin: RoleAdmin[Model], request: HttpRequest, texts: Sequence[str]) -> list[Model]:
    """Return the rows with these keys.

    They are read in chunks that share all but the last column of the key: `pk__in` would be an OR of all keys.
    """
    chunks: dict[tuple[tuple[str, object], ...], list[object]] = {}
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
