"""Pages of lists: a `limit`, and an opaque, signed `cursor` that says after which row the next page begins."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from django.core import signing
from django.db.models import Model, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.queries import PageQuery, parse_query

Row = TypeVar("Row")


class ListView(Protocol):
    """A view with a list, for which alone its cursors are valid."""

    @property
    def list_id(self) -> str: ...


_signer = signing.Signer(salt="eventservice.api.cursor")


class CursorPagination(BasePagination):
    """Reads one row more than a page has, to know whether another page follows.

    A view names its list (`list_id`), for which alone its cursors are valid, and the unique column that orders it
    (`ordering`).
    """

    next_cursor: str | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        column = view.ordering

        def fetch(after: object, limit: int) -> QuerySet[Model]:
            rows: QuerySet[Model] = queryset if after is None else queryset.filter(**{f"{column}__gt": after})
            return rows.order_by(column)[:limit]

        return self.paginate_rows(fetch, column, request, view)

    def paginate_rows(
        self, fetch: Callable[[Any, int], Iterable[Row]], column: str, request: Request, view: ListView
    ) -> list[Row]:
        """Return a page of the rows that `fetch` reads, given the last value of the column before them, and a limit."""
        query = parse_query(PageQuery, request.query_params)
        position = read_cursor(query.cursor, view.list_id)
        rows = list(fetch(position and position[0], query.limit + 1))
        if len(rows) > query.limit:
            rows = rows[: query.limit]
            self.next_cursor = make_cursor(view.list_id, [getattr(rows[-1], column)])
        return rows

    def get_paginated_response(self, data: object) -> Response:
        return Response({"items": data, "nextCursor": self.next_cursor})


def make_cursor(list_id: str, position: Sequence[object]) -> str:
    """Return the cursor of the page that begins after a position in this list."""
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in position]
    plain = [str(value) if isinstance(value, uuid.UUID) else value for value in plain]
    return _signer.sign_object([list_id, plain])


def read_cursor(cursor: str | None, list_id: str) -> list[Any] | None:
    """Return the position, or None for the first page; raise InvalidRequest if the cursor is not one of this list."""
    if cursor is None:
        return None
    try:
        made_for, position = _signer.unsign_object(cursor)
    except (signing.BadSignature, ValueError, TypeError):
        made_for, position = None, None
    if made_for != list_id:
        rule = "must be a nextCursor of this list, with the same filters and sort"
        raise InvalidRequest([FieldError("/query/cursor", rule)])
    return list(position)
