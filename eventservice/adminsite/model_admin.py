"""What every ModelAdmin of the site does: rights by role, composite keys, lists that stay quick, the action log."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q, QuerySet, lookups
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase

from eventservice.adminsite.actions import MAX_ROWS, RowAction
from eventservice.adminsite.change_lists import CappedPaginator, ConsoleChangeList
from eventservice.adminsite.composite_pk import format_key, parse_key, use_text_keys, with_text_key
from eventservice.adminsite.permissions import RolePermissions
from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import DomainError
from eventservice.operators.audit_log import list_actions_on, record_action

# As anything: its published types know less than it takes (functions as fields, say).
ModelAdmin: Any = admin.ModelAdmin


class RoleAdmin(RolePermissions, ModelAdmin):  # type: ignore[misc]
    """For third-party models too: the site mixes it into what they register, and nobody may change those."""

    audit_noun = ""  # what the action log calls it
    deferred_columns: tuple[str, ...] = ()  # columns that a list does not read
    audited_fields: tuple[str, ...] = ()  # fields whose new values the action log may keep
    paginator = CappedPaginator
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    empty_value_display = "–"

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """What its filters ask for. Django would take any column in the address: secret ones, and such as no index has."""
        for one in self.list_filter:
            if isinstance(one, str) and lookup.split("__")[0] == one:
                return bool(super().lookup_allowed(lookup, value, request))
            if not isinstance(one, str) and lookup in getattr(one, "names", ()):
                return True
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ConsoleChangeList]:
        return ConsoleChangeList

    def get_audit_subject(self, row: Any) -> str:
        """What the action log knows it by."""
        return str(row.pk[-1] if isinstance(row.pk, tuple) else row.pk)

    # --- composite keys ---------------------------------------------------------------------------------------

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        if not self.opts.is_composite_pk:
            return super().get_object(request, object_id, from_field)
        key = parse_key(self.model, object_id)
        return None if key is None else self.get_queryset(request).order_by().filter(**key).first()

    def action_checkbox(self, obj: Any) -> Any:
        return super().action_checkbox(with_text_key(obj))

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_addition(request, with_text_key(obj), message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, with_text_key(obj), message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        return super().log_deletions(request, [with_text_key(row) for row in queryset])

    def response_add(self, request: HttpRequest, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return super().response_add(request, with_text_key(obj), *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._answer(request, lambda: super(RoleAdmin, self).delete_view(request, *args, **kwargs))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """Django's history knows what was changed here; the action log also what was done elsewhere."""
        row = self.get_object(request, unquote(object_id))
        # Numbers are subjects too: of another tenant's thing, or of none's, it is another number.
        tenant_id = _uuid(getattr(row, "tenant_id", None))
        done = list_actions_on(self.get_audit_subject(row)) if row is not None else []
        done = [action for action in done if action.tenant_id == tenant_id]
        return use_text_keys(super().history_view(request, object_id, {"operator_actions": done}))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        if not self.opts.is_composite_pk:
            return super().get_deleted_objects(objs, request)
        # What hangs on such a row the database deletes with it; the admin knows of none.
        return [str(row) for row in objs], {self.opts.verbose_name_plural: len(objs)}, set(), []

    # --- actions ----------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        if request.method == "POST" and not self.get_actions(request):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponseBase | None:
        """Django's own would filter by `pk__in`, which composite keys have only by name."""
        asked = request.POST.get("action", "")
        if not asked:
            self.message_user(request, "Choose what to do.", messages.WARNING)
            return None
        if asked not in self.get_actions(request):
            raise PermissionDenied
        action: RowAction = self.get_actions(request)[asked][0]
        matching = None
        texts = request.POST.getlist(ACTION_CHECKBOX_NAME)[:MAX_ROWS]
        if request.POST.get("select_across") == "1":
            matching = CappedPaginator(queryset, 1).count
            texts = [format_key(row) for row in queryset[:MAX_ROWS]]
        answer: HttpResponseBase | None = action(self, request, texts, matching)
        return answer or HttpResponseRedirect(request.get_full_path())

    # --- changes ----------------------------------------------------------------------------------------------

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._answer(request, lambda: super(RoleAdmin, self).changeform_view(request, *args, **kwargs))

    def _answer(self, request: HttpRequest, view: Callable[[], Any]) -> Any:
        """A rule that the domain knows and the form does not is told as a message; nothing has been changed."""
        try:
            return use_text_keys(view())
        except DomainError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Last of what a form writes, and in the same transaction: the line in the action log."""
        super().save_related(request, form, formsets, change)
        if change and not form.changed_data:
            return
        values = {
            name: _said(form.cleaned_data.get(name))
            for name in form.changed_data
            if name in self.audited_fields
        }
        fields = sorted(set(form.changed_data) - set(values))
        self.record(request, "change" if change else "create", form.instance, **values, fields=fields)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.record(request, "delete", obj, name=str(obj))
        super().delete_model(request, obj)

    def record(self, request: HttpRequest, verb: str, row: Any, **detail: Any) -> None:
        record_action(
            request.user,
            f"{self.audit_noun or self.opts.model_name}-{verb}",
            tenant_id=_uuid(getattr(row, "tenant_id", None)),
            subject=self.get_audit_subject(row),
            **{name: value for name, value in detail.items() if value not in ([], None)},
        )


def _said(value: Any) -> Any:
    if isinstance(value, QuerySet):
        return sorted(map(str, value))
    return value if isinstance(value, bool | int | list) else str(value)


def _uuid(value: Any) -> uuid.UUID | None:
    return value if isinstance(value, uuid.UUID) else None


class ReadOnlyAdmin(RoleAdmin):
    """A table with one writer, which the admin is not. What it offers to do is done by the domain's commands."""

    edit_role = None


class LargeTableAdmin(ReadOnlyAdmin):
    """One that grows to millions of rows: in an order that an index has, and filtered by what indexes begin with."""

    sortable_by = ()
    # Of what is searched for, the columns that filters ask for too. They must not lead a planner to their index.
    filters_kept_in_search: tuple[str, ...] = ()

    def get_date_column(self, request: HttpRequest) -> str | None:
        """For its DateHierarchy, if it has one."""
        return None

    def build_search(self, request: HttpRequest, text: str) -> Q:
        """The rows that are searched for, by their keys or by another index; `search_help_text` says which."""
        raise NotImplementedError

    def get_search_fields(self, request: HttpRequest) -> Any:
        return (self.search_help_text,) if self.search_help_text else ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        text = search_term.strip()
        if not text or not self.search_help_text:
            return queryset, False
        chosen = [(name, request.GET[name]) for name in self.filters_kept_in_search if request.GET.get(name)]
        conditions = (lookups.Exact(Unindexed(F(name)), value) for name, value in chosen)
        return self.get_queryset(request).filter(self.build_search(request, text), *conditions), False
