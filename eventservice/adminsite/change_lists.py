"""Change lists that stay fast with millions of rows.

Counts stop at a maximum, and rows are ordered and filtered only as an index allows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib.admin import ListFilter, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import formats
from django.utils.functional import cached_property
from django.utils.text import capfirst

from eventservice.adminsite.composite_pk import with_text_key
from eventservice.db.bounded_count import count_capped, format_capped
from eventservice.tenants.directory import find_tenant_names
from eventservice.tenants.models import Tenant

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django.contrib.admin.filters import _ListFilterChoices
    from django.db.models.expressions import Combinable

    from eventservice.adminsite.model_admin import LargeTableAdmin, RoleAdmin

M = TypeVar("M", bound="Model")

MAX_LATEST_ROWS = 10_000  # rows that a filter without an index examines
NO_TENANT = uuid.UUID(int=0)
MAX_TENANT_CHOICES = 300  # in the filter; the URL can name any other


class Capped(int):
    def __str__(self) -> str:
        return format_capped(int(self))


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    @cached_property
    def count(self) -> int:
        """The number of rows, up to a maximum."""
        rows: Any = self.object_list
        return Capped(count_capped(rows, rows.model._meta.pk_fields[0].attname))


class ConsoleChangeList(ChangeList):
    model_admin: RoleAdmin[Model]
    dates: list[DateHierarchy]

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        super().__init__(request, *args)
        self.rows_name = self._describe_rows()
        if not self.is_popup:
            presets = [spec.get_selected_name() for spec in self._choices() if spec.preset and spec.column]
            self.title = ": ".join([capfirst(self.rows_name), *presets])
        self.without_search = self.get_query_string(remove=[SEARCH_VAR])

    def _choices(self) -> list[ChoiceFilter]:
        return [spec for spec in self.filter_specs if isinstance(spec, ChoiceFilter)]

    def _describe_rows(self) -> str:
        """Return the name of the rows, with the tenant they are limited to: they must not be mistaken for all rows."""
        rows = str(self.opts.verbose_name_plural)
        if self.query:  # searches include all tenants
            return f"{rows} found by “{self.query}”"
        tenants = [spec.get_selected_name() for spec in self._choices() if isinstance(spec, TenantFilter)]
        return " of ".join([rows, *filter(None, tenants)])

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Model]:
        rows = super().get_queryset(request, exclude_parameters).defer(*self.model_admin.deferred_columns)
        self.dates = [spec for spec in self.filter_specs if isinstance(spec, DateHierarchy)]
        self.filter_specs = [spec for spec in self.filter_specs if not isinstance(spec, DateHierarchy)]
        return rows

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        if self.sortable_by == ():
            # The URL could ask for another order, for which there is no index.
            return list(self.model_admin.get_ordering(request))
        return super().get_ordering(request, queryset)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = add_tenant_names(self.result_list)

    def url_for_result(self, result: Model) -> str:
        return super().url_for_result(with_text_key(result))


def add_tenant_names(rows: Iterable[M]) -> list[M]:
    """Return the rows, each with the name of its tenant, which one query reads for all of them."""
    known: list[Any] = list(rows)  # of any model; most have a tenant, none declares its name
    ids: set[uuid.UUID | None] = {getattr(row, "tenant_id", None) for row in known} - {None}
    names = find_tenant_names(ids) if ids else {}
    for row in known:
        row.tenant_name = names.get(getattr(row, "tenant_id", NO_TENANT), "")
    return known


def is_search(request: HttpRequest) -> bool:
    return bool(request.GET.get(SEARCH_VAR, "").strip())


class ChoiceFilter(SimpleListFilter):
    """A filter by one of a few known values of a column with which an index begins."""

    column = ""
    names: tuple[str, ...] = ()  # of its query parameters
    values: Sequence[tuple[str, str]] = ()
    preset: str | None = None  # the default value; with one, "All" is not offered

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Model]) -> Sequence[tuple[str, str]]:
        return self.values

    def value(self) -> str | None:
        return super().value() or self.preset

    def choices(self, changelist: ChangeList) -> Iterator[_ListFilterChoices]:
        every = super().choices(changelist)
        if self.preset is not None:
            next(every)
        return every

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        chosen = self.value()
        if chosen is None:
            return queryset
        if chosen not in dict(self.lookup_choices):
            raise IncorrectLookupParameters
        return self.apply(queryset, chosen)

    def apply(self, queryset: QuerySet[Model], chosen: str) -> QuerySet[Model]:
        return queryset.filter(**{self.column: chosen})

    def get_selected_name(self) -> str:
        return str(dict(self.lookup_choices).get(self.value() or "", ""))


class RecentRowsFilter(ChoiceFilter):
    """A filter by a column without an index, which examines only the latest rows that the other filters leave."""

    def apply(self, queryset: QuerySet[Model], chosen: str) -> QuerySet[Model]:
        return super().apply(limit_to_latest(queryset), chosen)


def limit_to_latest(rows: QuerySet[Model]) -> QuerySet[Model]:
    """Limit a list to its first MAX_LATEST_ROWS rows, whose end its index knows."""
    order = str(rows.query.order_by[0])
    column = order.lstrip("-")
    last = rows.values_list(column, flat=True)[MAX_LATEST_ROWS - 1 : MAX_LATEST_ROWS].first()
    if last is None:
        return rows
    return rows.filter(**{f"{column}__{'gte' if order.startswith('-') else 'lte'}": last})


def choice_filter(
    column: str,
    values: Sequence[tuple[str, str]],
    *,
    title: str = "",
    preset: str | None = None,
    kind: type[ChoiceFilter] = ChoiceFilter,
) -> type[ChoiceFilter]:
    title = title or column.replace("_", " ")
    attributes = {
        "title": f"{title} (of the latest {MAX_LATEST_ROWS:,})"
        if issubclass(kind, RecentRowsFilter)
        else title,
        "parameter_name": column,
        "names": (column,),
        "column": column,
        "values": values,
        "preset": preset,
    }
    return type(f"{column.title()}Filter", (kind,), attributes)


class TenantFilter(ChoiceFilter):
    """A filter that always selects a tenant, the first by name at first, because all indexes begin with the tenant."""

    title = "tenant"
    parameter_name = "tenant"
    names = ("tenant",)

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Model]) -> Sequence[tuple[str, str]]:
        tenants = Tenant.objects.order_by("name").values_list("pk", "name")[:MAX_TENANT_CHOICES]
        choices = [(str(pk), name) for pk, name in tenants]
        self.preset = choices[0][0] if choices else str(NO_TENANT)
        return choices

    def has_output(self) -> bool:
        """Keep the filter even without choices: Django would leave it out and show the rows of all tenants."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        return queryset.filter(tenant_id=parse_tenant_id(self.value()))

    def get_selected_name(self) -> str:
        """Return the name of the selected tenant, which need not be among the choices."""
        chosen = self.value()
        return find_tenant_names([parse_tenant_id(chosen)]).get(parse_tenant_id(chosen), "") if chosen else ""


class AnyTenantFilter(TenantFilter):
    """A tenant filter for tables whose order does not begin with the tenant: by default it shows all."""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Model]) -> Sequence[tuple[str, str]]:
        choices = super().lookups(request, model_admin)
        self.preset = None
        return choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        return queryset if self.value() is None else super().queryset(request, queryset)


def get_selected_tenant(request: HttpRequest) -> uuid.UUID:
    """Return the tenant that the TenantFilter selects."""
    if asked := request.GET.get("tenant"):
        return parse_tenant_id(asked)
    return Tenant.objects.order_by("name").values_list("pk", flat=True).first() or NO_TENANT


def parse_tenant_id(text: str | None) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as wrong:
        raise IncorrectLookupParameters from wrong


class DateHierarchy(ListFilter):
    """A drill-down by year, month and day.

    Django's own `date_hierarchy` reads the dates of all rows. This one offers every date between the first and the
    last, which are the two ends of an index. It must be the last filter, and its column the next one in the index
    that the filters before it use: `get_date_column` of the ModelAdmin names it, or returns None for no dates.
    """

    title = "date"
    template = "admin/dates.html"
    names = ("year", "month", "day")

    def __init__(
        self,
        request: HttpRequest,
        params: dict[str, list[str]],
        model: type[Model],
        model_admin: LargeTableAdmin[Model],
    ) -> None:
        super().__init__(request, params, model, model_admin)
        self.column: str | None = model_admin.get_date_column(request)
        self.chosen = _parse_date([params.pop(name, [""])[-1] for name in self.names])

    def has_output(self) -> bool:
        return self.column is not None

    def expected_parameters(self) -> list[str | None]:
        return list(self.names)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        self.rows = queryset
        if not self.chosen:
            return queryset
        first, end = _get_period(self.chosen)
        return queryset.filter(**{f"{self.column}__gte": first, f"{self.column}__lt": end})

    def choices(self, changelist: ChangeList) -> Iterator[dict[str, object]]:
        """Return the link back, then the dates that can be chosen next."""
        first, last = self._end(f"{self.column}"), self._end(f"-{self.column}")
        if first is None or last is None:
            return
        chosen = list(self.chosen)
        if chosen:
            yield self._choice(changelist, chosen[:-1], back=True)
        # A year or month that all dates share is chosen already.
        while len(chosen) < 2 and (next_parts := _list_dates(first, last, chosen)) and len(next_parts) == 1:
            chosen = next_parts[0]
        for parts in _list_dates(first, last, chosen):
            yield self._choice(changelist, parts)

    def _end(self, order: str) -> date | None:
        moment = self.rows.order_by(order).values_list(order.lstrip("-"), flat=True)[:1].first()
        return moment.astimezone(UTC).date() if moment else None

    def _choice(self, changelist: ChangeList, parts: list[int], back: bool = False) -> dict[str, object]:
        asked = dict(zip(self.names, parts, strict=False))
        return {
            "back": back,
            "selected": list(self.chosen) == parts,
            "query_string": changelist.get_query_string(asked, [n for n in self.names if n not in asked]),
            "display": _format_date(parts),
        }


def _parse_date(texts: list[str]) -> tuple[int, ...]:
    """Return year, month and day, as far as they are given."""
    given = tuple(text for text in texts if text)
    try:
        numbers = tuple(map(int, given))
        if numbers:
            _get_period(numbers)
    except (ValueError, OverflowError) as wrong:
        raise IncorrectLookupParameters from wrong
    return numbers


def _get_period(parts: Sequence[int]) -> tuple[datetime, datetime]:
    year, month, day = (*parts, 1, 1)[:3]
    first = datetime(year, month, day, tzinfo=UTC)
    match len(parts):
        case 1:
            return first, first.replace(year=year + 1)
        case 2:
            return first, (first + timedelta(days=32)).replace(day=1)
    return first, first + timedelta(days=1)


def _list_dates(first: date, last: date, chosen: Sequence[int]) -> list[list[int]]:
    """Return the years between two dates, or the months of the chosen year, or the days of the chosen month."""
    match list(chosen):
        case []:
            return [[year] for year in range(first.year, last.year + 1)]
        case [year]:
            months = [[year, month] for month in range(1, 13)]
            return [m for m in months if [first.year, first.month] <= m <= [last.year, last.month]]
        case [year, month]:
            days = (date(year, month, 1) + timedelta(days=n) for n in range(31))
            return [[year, month, d.day] for d in days if d.month == month and first <= d <= last]
    return [list(chosen)]


def _format_date(parts: list[int]) -> str:
    match parts:
        case []:
            return "All dates"
        case [year]:
            return str(year)
        case [year, month]:
            return formats.date_format(date(year, month, 1), "YEAR_MONTH_FORMAT")
    return formats.date_format(date(*parts), "MONTH_DAY_FORMAT")


# --- search -------------------------------------------------------------------------------------


def build_key_filter(column: str, found: Iterable[tuple[uuid.UUID, object]]) -> Q:
    """Return a filter for the rows with these pairs of tenant and value, which matches nothing if there are none."""
    by_tenant: dict[uuid.UUID, list[object]] = {}
    for tenant_id, value in found:
        by_tenant.setdefault(tenant_id, []).append(value)
    nothing = Q(pk__in=[])
    return reduce(or_, (Q(tenant_id=t, **{f"{column}__in": v}) for t, v in by_tenant.items()), nothing)
