"""How responses are written."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json
from rest_framework.renderers import BaseRenderer


class ModelRenderer(BaseRenderer):
    """Writes models of eventservice.api.schema, and lists and dicts of them, as JSON in UTF-8."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self,
        data: object,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, object] | None = None,
    ) -> bytes:
        return b"" if data is None else to_json(data)
