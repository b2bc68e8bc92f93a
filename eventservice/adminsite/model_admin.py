"""Base classes of the ModelAdmins: permissions by role, composite keys, fast lists, audit log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import F, Model, Q, QuerySet, lookups
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from eventservice.adminsite.actions import MAX_ROWS, RowAction
from eventservice.adminsite.change_lists import CappedPaginator, ConsoleChangeList
from eventservice.adminsite.composite_pk import format_key, parse_key, use_text_keys, with_text_key
from eventservice.adminsite.permissions import RolePermissions
from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import DomainError
from eventservice.operators.audit_log import list_actions_on, record_action

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry
    from django.db.models.options import Options
    from django.forms import BaseFormSet, Media, ModelForm
    from django.utils.safestring import SafeString

M = TypeVar("M", bound=Model)
Context = dict[str, object]
# What is deleted, how many of each model, what permissions are missing, and what forbids it.
DeletedObjects = tuple[list[str], dict[str, int], set[str], list[str]]

# Its type stubs accept less than it does itself, such as functions as fields.
ModelAdmin: Any = admin.ModelAdmin


class RoleAdmin(RolePermissions, ModelAdmin, Generic[M]):  # type: ignore[misc]
    """Base of all ModelAdmins. The site also mixes it into those of third-party apps."""

    model: type[M]
    opts: Options[M]
    admin_site: admin.AdminSite
    media: Media

    audit_noun = ""  # its name in the audit log; by default the name of the model
    deferred_columns: tuple[str, ...] = ()  # columns that lists do not read
    audited_fields: tuple[str, ...] = ()  # fields whose new values may appear in the audit log
    paginator = CappedPaginator
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    empty_value_display = "–"

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups of the filters. Django would also allow secret columns, and columns without an index."""
        for one in self.list_filter:
            if isinstance(one, str) and lookup.split("__")[0] == one:
                return bool(super().lookup_allowed(lookup, value, request))
            if not isinstance(one, str) and lookup in getattr(one, "names", ()):
                return True
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ConsoleChangeList]:
        return ConsoleChangeList

    def get_audit_subject(self, row: M) -> str:
        """Return the subject of this row's entries in the audit log."""
        return str(row.pk[-1] if isinstance(row.pk, tuple) else row.pk)

    # --- composite keys ---------------------------------------------------------------------------------------

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> M | None:
        if self.opts.is_composite_pk:
            key = parse_key(self.model, object_id)
            rows: QuerySet[M] = self.get_queryset(request).order_by()
            return None if key is None else rows.filter(**key).first()
        found: M | None = super().get_object(request, object_id, from_field)
        return found

    def action_checkbox(self, obj: M) -> SafeString:
        checkbox: SafeString = super().action_checkbox(with_text_key(obj))
        return checkbox

    def log_addition(self, request: HttpRequest, obj: M, message: object) -> LogEntry:
        entry: LogEntry = super().log_addition(request, with_text_key(obj), message)
        return entry

    def log_change(self, request: HttpRequest, obj: M, message: object) -> LogEntry:
        entry: LogEntry = super().log_change(request, with_text_key(obj), message)
        return entry

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[M]) -> list[LogEntry]:
        entries: list[LogEntry] = super().log_deletions(request, [with_text_key(row) for row in queryset])
        return entries

    def response_add(
        self, request: HttpRequest, obj: M, post_url_continue: str | None = None
    ) -> HttpResponse:
        response: HttpResponse = super().response_add(request, with_text_key(obj), post_url_continue)
        return response

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: Context | None = None
    ) -> HttpResponse:
        view = super().delete_view
        return self._answer(request, lambda: view(request, object_id, extra_context))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Context | None = None
    ) -> HttpResponse:
        """Show Django's history with the audit log, which also has what was done outside the admin."""
        row = self.get_object(request, unquote(object_id))
        # A number may be the subject of entries about something else, of another tenant or of none.
        tenant_id = _only_uuid(getattr(row, "tenant_id", None))
        done = list_actions_on(self.get_audit_subject(row)) if row is not None else []
        done = [action for action in done if action.tenant_id == tenant_id]
        response: HttpResponse = super().history_view(request, object_id, {"operator_actions": done})
        return use_text_keys(response)

    def get_deleted_objects(self, objs: Sequence[M] | QuerySet[M], request: HttpRequest) -> DeletedObjects:
        if not self.opts.is_composite_pk:
            found: DeletedObjects = super().get_deleted_objects(objs, request)
            return found
        # The database cascades; the admin cannot follow relations of composite keys.
        return [str(row) for row in objs], {str(self.opts.verbose_name_plural): len(objs)}, set(), []

    # --- actions ----------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: Context | None = None) -> HttpResponse:
        if request.method == "POST" and not self.get_actions(request):
            raise PermissionDenied
        response: HttpResponse = super().changelist_view(request, extra_context)
        return response

    def response_action(self, request: HttpRequest, queryset: QuerySet[M]) -> HttpResponseBase | None:
        """Run an action. Django's own method filters by `pk__in`, which is an OR of all keys for composite ones."""
        asked = request.POST.get("action", "")
        if not asked:
            self.message_user(request, "Choose an action.", messages.WARNING)
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

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: Context | None = None,
    ) -> HttpResponse:
        view = super().changeform_view
        return self._answer(request, lambda: view(request, object_id, form_url, extra_context))

    def _answer(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Show an error of the domain as a message. The transaction has been rolled back."""
        try:
            return use_text_keys(view())
        except DomainError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def save_related(
        self,
        request: HttpRequest,
        form: ModelForm[M],
        formsets: Sequence[BaseFormSet[ModelForm[Model]]],
        change: bool,
    ) -> None:
        """Save the form's relations and, in the same transaction, the entry in the audit log."""
        super().save_related(request, form, formsets, change)
        if change and not form.changed_data:
            return
        values = {
            name: _to_detail(form.cleaned_data.get(name))
            for name in form.changed_data
            if name in self.audited_fields
        }
        fields = sorted(set(form.changed_data) - set(values))
        self.record(request, "change" if change else "create", form.instance, **values, fields=fields)

    def delete_model(self, request: HttpRequest, obj: M) -> None:
        self.record(request, "delete", obj, name=str(obj))
        super().delete_model(request, obj)

    def record(self, request: HttpRequest, verb: str, row: M, **detail: object) -> None:
        record_action(
            request.user,
            f"{self.audit_noun or self.opts.model_name}-{verb}",
            tenant_id=_only_uuid(getattr(row, "tenant_id", None)),
            subject=self.get_audit_subject(row),
            **{name: value for name, value in detail.items() if value not in ([], None)},
        )


def _to_detail(value: object) -> object:
    if isinstance(value, QuerySet):
        return sorted(map(str, value))
    return value if isinstance(value, bool | int | list) else str(value)


def _only_uuid(value: object) -> uuid.UUID | None:
    return value if isinstance(value, uuid.UUID) else None


class ReadOnlyAdmin(RoleAdmin[M]):
    """An admin of a table that the admin must not write to. Its actions run commands of the domain."""

    edit_role = None


class LargeTableAdmin(ReadOnlyAdmin[M]):
    """An admin of a table with millions of rows, ordered and filtered only as indexes allow."""

    sortable_by = ()
    # Filters that also apply to search results. They must not tempt the planner to use their own index.
    filters_kept_in_search: tuple[str, ...] = ()

    def get_date_column(self, request: HttpRequest) -> str | None:
        """Return the column of the DateHierarchy, or None."""
        return None

    def build_search(self, request: HttpRequest, text: str) -> Q:
        """Return the filter of a search, by key or another index; `search_help_text` tells the user which."""
        raise NotImplementedError

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return (str(self.search_help_text),) if self.search_help_text else ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        text = search_term.strip()
        if not text or not self.search_help_text:
            return queryset, False
        chosen = [(name, request.GET[name]) for name in self.filters_kept_in_search if request.GET.get(name)]
        conditions = (lookups.Exact(Unindexed(F(name)), value) for name, value in chosen)
        return self.get_queryset(request).filter(self.build_search(request, text), *conditions), False
