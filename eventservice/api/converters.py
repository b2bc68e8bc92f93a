"""What an id in a path may look like: as in a body or a query, its digits in either case."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import UUIDConverter


class IdConverter(UUIDConverter):
    regex = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


register_converter(IdConverter, "id")
