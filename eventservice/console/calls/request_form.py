"""The form for a new call. It builds the document that a program would send to the API, whose model validates it.

The form knows no rule of its own beyond what only a form can get wrong, such as a header value without a name. Errors of
the document are shown at the fields that their JSON pointers lead to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.forms.renderers import BaseRenderer
from django.forms.utils import flatatt
from django.http import QueryDict
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from eventservice.api.formats import format_instant, parse_uuid
from eventservice.api.parsers import parse_json
from eventservice.api.problems import FieldError, Problem
from eventservice.api.schema.submissions import DEFAULT_TIMEOUT, parse_submission
from eventservice.api.schema.types import CallContext
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.calls.local_time import LocalTimeForm
from eventservice.console.calls.presenters.http_exchange import format_json
from eventservice.kernel.errors import NotFound
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import TenantProfile, get_profile
from eventservice.tenants.models import DEFAULT_NAMESPACE, Tenant
from execution.outcome import METHODS
from execution.redaction import is_secret_header
from orchestration.commands import SubmitServiceCall
from orchestration.states import FAVORITE, Delivery

MIN_HEADER_ROWS = 2
RETRY_FIELDS = {
    "max_attempts": "maxAttempts",
    "max_attempts_duration": "maxAttemptsDuration",
    "initial_interval": "initialInterval",
    "backoff_multiplier": "backoffMultiplier",
    "max_interval": "maxInterval",
}
# The retries that a new form offers. They are values of its fields: a form that is sent without them gets none.
DEFAULT_RETRIES = {
    "max_attempts": "5",
    "initial_interval": "30s",
    "backoff_multiplier": "2",
    "max_interval": "1h",
}
ADVANCED_FIELDS = (
    "timeout",
    "namespace",
    "delivery",
    *(name for name in RETRY_FIELDS if name != "max_attempts"),
)
DELIVERIES = {Delivery.AT_LEAST_ONCE.value: "At least once", Delivery.AT_MOST_ONCE.value: "At most once"}
FIELD_BY_POINTER = {
    "/name": "name",
    "/requestSpec/method": "method",
    "/requestSpec/url": "url",
    "/requestSpec/headers": "headers",
    "/requestSpec/body": "body",
    "/tags": "tags",
    "/namespace": "namespace",
    "/timeoutSeconds": "timeout",
    "/delivery": "delivery",
    **{f"/retryPolicy/{member}": name for name, member in RETRY_FIELDS.items()},
}
# Validates the document while no tenant is chosen.
UNKNOWN_TENANT = TenantProfile(
    tenant_id=uuid.UUID(int=0),
    name="",
    active=False,
    max_in_flight=0,
    max_pending=0,
    requests_per_minute=0,
    bytes_per_minute=0,
    max_stored_bytes=0,
    stored_bytes=0,
    secret_headers=frozenset(),
    allowed_hosts=frozenset(),
    signing_secret="",
    num_shards={DEFAULT_NAMESPACE: 1},
    stores={},
)


@dataclass(slots=True)
class HeaderRow:
    name: str = ""
    value: str = ""
    error: str = ""
    hint: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.name.strip() or self.value.strip())


class BodyForm(forms.Form):
    """The body of the request. Once valid, `document` is the value that the API's document has for it."""

    body_kind = forms.CharField(required=False, initial="json")
    body = forms.CharField(label="Body", required=False, strip=False)

    document: Any = None
    error_line: int | None = None

    def clean_body(self) -> str:
        # Browsers send line breaks as CR LF.
        text: str = self.cleaned_data["body"].replace("\r\n", "\n")
        if self.cleaned_data["body_kind"] == "text":
            self.document = text or None
        elif text.strip():
            self.document = self._parse_json(text)
        return text

    def _parse_json(self, text: str) -> Any:
        try:
            body = parse_json(text)
        except Problem as problem:
            self.error_line = _find_error_line(text)
            raise forms.ValidationError(_quote_error_line(problem.detail, text, self.error_line)) from None
        if body is None or isinstance(body, str):
            raise forms.ValidationError("To send a string or nothing as it is, choose Text instead of JSON.")
        return body

    def format_body(self) -> str | None:
        """Return the body with line breaks and indentation if it is valid JSON."""
        is_json = self.is_valid() and self.cleaned_data["body_kind"] != "text" and self.document is not None
        return format_json(self.document) if is_json else None


class TextInput(forms.TextInput):
    """A text input that is rendered without a template. The page has twelve; with templates it takes 1.3 ms longer."""

    def render(
        self,
        name: str,
        value: Any,
        attrs: dict[str, Any] | None = None,
        renderer: BaseRenderer | None = None,
    ) -> SafeString:
        widget = self.get_context(name, value, attrs)["widget"]
        own = {member: widget[member] for member in ("type", "name", "value")}
        return format_html("<input{}>", flatatt({**own, **widget["attrs"]}))


def _build_text_field(label: str, help_text: str = "", **attributes: str) -> forms.CharField:
    """Return an optional field: the API's model decides what is required."""
    attributes = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false", **attributes}
    attributes = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return forms.CharField(label=label, required=False, help_text=help_text, widget=TextInput(attributes))


def _build_select(
    label: str, choices: Mapping[str, str], initial: str, help_text: str = ""
) -> forms.CharField:
    widget = forms.Select(choices=list(choices.items()))
    return forms.CharField(label=label, required=False, initial=initial, help_text=help_text, widget=widget)


class RequestForm(BodyForm):
    """Once valid, `command` submits the call. `header_rows` and `local_time` are parts that have no field of their own."""

    key = forms.CharField(required=False)
    tenant = forms.CharField(required=False)
    curl = forms.CharField(required=False)
    name = _build_text_field("Name", placeholder="Send the invoice", aria_required="true")
    method = _build_select("Method", dict(zip(METHODS, METHODS, strict=True)), initial="POST")
    url = _build_text_field(
        "URL",
        placeholder="https://api.example.com/hook",
        inputmode="url",
        aria_required="true",
        class_="mono",
    )
    headers = forms.CharField(label="Headers", required=False)
    when = forms.CharField(required=False, initial="now")
    tags = _build_text_field("Tags", "Separated by commas, for example: billing, nightly.")
    favorite = forms.BooleanField(label="Favorite", required=False)
    timeout = _build_text_field("Timeout", f"In seconds. Default: {DEFAULT_TIMEOUT:g}.", inputmode="decimal")
    max_attempts = _build_text_field(
        "Max attempts",
        "A failed attempt is retried until this many were made. 1: no retries.",
        inputmode="numeric",
    )
    initial_interval = _build_text_field(
        "Initial delay", "Limit of the random pause before the second attempt."
    )
    backoff_multiplier = _build_text_field(
        "Backoff factor", "From one limit to the next.", inputmode="decimal"
    )
    max_interval = _build_text_field("Max delay", "Longest pause between two attempts.")
    max_attempts_duration = _build_text_field("Max duration", "Of all attempts. Empty: no limit.")
    namespace = _build_text_field("Namespace", f"Empty: {DEFAULT_NAMESPACE}.")
    delivery = _build_select(
        "Delivery",
        DELIVERIES,
        initial=Delivery.AT_LEAST_ONCE,
        help_text="What happens if the outcome of an attempt is unknown: it is repeated, or the call fails.",
    )

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        now: datetime,
        correlation_id: uuid.UUID | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        """`initial` may also have `headers`, a list of rows, and the `date`, `time` and `zone` of the call."""
        values = {"key": generate_key(), **(initial or {})}
        super().__init__(data, auto_id="%s", initial=values)
        self.now = now
        self.correlation_id = correlation_id or new_id()
        self.command: SubmitServiceCall | None = None
        self.header_rows = values.get("headers", []) if data is None else read_header_rows(data)
        self.local_time = self._build_local_time(values if data is None else data)

    def _build_local_time(self, values: Mapping[str, Any]) -> LocalTimeForm:
        typed = {name: values.get(name, "") for name in LocalTimeForm.base_fields}
        # Before the form is sent, a time is validated as soon as it is complete.
        is_complete = bool(typed["date"] and typed["time"])
        if self.is_scheduled and (self.is_bound or is_complete):
            return LocalTimeForm(typed, now=self.now)
        return LocalTimeForm(initial=typed, now=self.now)

    @classmethod
    def from_typed(cls, data: QueryDict, *, now: datetime, **changes: Any) -> RequestForm:
        """Return an unbound form that shows what was typed, without validating it."""
        typed = {name: data.get(name, "") for name in (*cls.base_fields, *LocalTimeForm.base_fields)}
        headers = read_header_rows(data)
        return cls(
            now=now, initial={**typed, "headers": headers, "key": typed["key"] or generate_key(), **changes}
        )

    # --- what the template shows ----------------------------------------------------------------------------------

    @property
    def is_scheduled(self) -> bool:
        return bool(self["when"].value() == "schedule")

    @property
    def rows(self) -> list[HeaderRow]:
        """The header rows, and some empty ones to fill in."""
        filled = [row for row in self.header_rows if not row.is_empty]
        return [*filled, *(HeaderRow() for _ in range(max(1, MIN_HEADER_ROWS - len(filled))))]

    @property
    def has_advanced_values(self) -> bool:
        defaults = {"delivery": Delivery.AT_LEAST_ONCE, **DEFAULT_RETRIES}
        return any(self[name].value() not in (None, "", defaults.get(name)) for name in ADVANCED_FIELDS)

    @property
    def delay_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in RETRY_FIELDS if name != "max_attempts"]

    @cached_property
    def tenants(self) -> list[Tenant]:
        """The tenants to choose from."""
        return list_tenant_options(parse_uuid(self._chosen_tenant), active=True)

    @property
    def needs_tenant(self) -> bool:
        """Whether no tenant is chosen, or an unavailable one. It is not replaced by the only one there is."""
        return self._chosen_tenant not in {str(tenant.pk) for tenant in self.tenants}

    @property
    def max_body_bytes(self) -> int:
        return int(settings.API_MAX_BODY_BYTES)

    @property
    def _chosen_tenant(self) -> str:
        return str(self["tenant"].value() or "")

    @property
    def has_errors(self) -> bool:
        return self.is_bound and not self.is_valid()

    # --- validation -----------------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        return super().is_valid() and (not self.is_scheduled or self.local_time.is_valid())

    def clean_tenant(self) -> TenantProfile | None:
        tenant_id = parse_uuid(self.cleaned_data["tenant"])
        try:
            tenant = get_profile(tenant_id) if tenant_id else None
        except NotFound:
            tenant = None
        if tenant is None:
            self.add_error("tenant", "Choose a tenant.")
        elif not tenant.active:
            self.add_error("tenant", "This tenant is not active.")
        return tenant

    def clean(self) -> None:
        tenant: TenantProfile | None = self.cleaned_data.get("tenant")
        document = self._build_document(tenant)
        try:
            self.command = parse_submission(
                document, CallContext(tenant or UNKNOWN_TENANT, self.correlation_id)
            )
        except Problem as problem:
            self._add_document_errors(problem.errors)

    def _build_document(self, tenant: TenantProfile | None) -> dict[str, Any]:
        def get(name: str) -> str:
            return str(self.cleaned_data.get(name, ""))

        document: dict[str, Any] = {
            "name": get("name"),
            "requestSpec": {
                "method": get("method"),
                "url": get("url"),
                "headers": self._read_headers(tenant),
                "body": self.document,
            },
            "tags": self._list_tags(),
            "idempotencyKey": get("key") or generate_key(),
            "timeoutSeconds": _parse_number(get("timeout")),
            "delivery": get("delivery") or None,
            "retryPolicy": {
                "maxAttempts": _parse_number(get("max_attempts")),
                "maxAttemptsDuration": get("max_attempts_duration") or None,
                "initialInterval": get("initial_interval") or None,
                "backoffMultiplier": _parse_number(get("backoff_multiplier")),
                "maxInterval": get("max_interval") or None,
            },
        }
        if not self._has_retries():
            del document["retryPolicy"]
        if tenant is not None:  # a namespace belongs to a tenant
            document["namespace"] = get("namespace") or None
        if self.is_scheduled and self.local_time.is_valid() and self.local_time.resolved:
            document["dueAt"] = format_instant(self.local_time.resolved.at)
        return document

    def _has_retries(self) -> bool:
        """Whether retries are wanted. The delays that a new form offers do not count without a number of attempts."""
        given = {name: self.cleaned_data.get(name) for name in RETRY_FIELDS}
        return any(
            value and (given["max_attempts"] or value != DEFAULT_RETRIES.get(name))
            for name, value in given.items()
        )

    def _read_headers(self, tenant: TenantProfile | None) -> dict[str, str]:
        headers: dict[str, str] = {}
        for row in self.header_rows:
            name, value = row.name.strip(), row.value.strip()
            if row.is_empty:
                continue
            if not name:
                self._add_header_error(row, "This value needs a header name.")
            elif name in headers:
                self._add_header_error(row, f"{name} is already in the list.")
            elif not value and is_secret_header(name, tenant.secret_headers if tenant else ()):
                self._add_header_error(
                    row, f"{name} needs a value: secrets are not copied. Enter or remove it."
                )
            else:
                headers[name] = value
        return headers

    def _add_header_error(self, row: HeaderRow, text: str) -> None:
        row.error = text
        if not self.has_error("headers"):
            self.add_error("headers", "Fix the highlighted headers.")

    def _list_tags(self) -> list[str]:
        tags = [tag.strip() for tag in str(self.cleaned_data.get("tags", "")).split(",")]
        favorite = [FAVORITE] if self.cleaned_data.get("favorite") else []
        return [*dict.fromkeys(filter(None, tags)), *favorite]

    def _add_document_errors(self, errors: Iterable[FieldError]) -> None:
        already_invalid = set(self.errors)
        for pointer, rule in errors:
            parts = pointer.split("/")
            name = next(
                (name for prefix, name in FIELD_BY_POINTER.items() if f"{pointer}/".startswith(f"{prefix}/")),
                None,
            )
            if row := self._find_header_row(pointer):
                self._add_header_error(row, f"{row.name.strip()} {rule}.")
            elif name is None:
                self.add_error(None, f"{pointer} {rule}.")
            elif name == "tags" and parts[-1].isdecimal():
                self.add_error("tags", f"The tag {self._list_tags()[int(parts[-1])][:70]!r} {rule}.")
            elif name not in already_invalid:
                self.add_error(name, f"{self.fields[name].label} {rule}.")

    def _find_header_row(self, pointer: str) -> HeaderRow | None:
        prefix = "/requestSpec/headers/"
        if not pointer.startswith(prefix):
            return None
        name = pointer.removeprefix(prefix).replace("~1", "/").replace("~0", "~")
        return next((row for row in self.header_rows if row.name.strip()[:200] == name), None)


def generate_key() -> str:
    """Return an idempotency key, by which a form that is sent twice creates one call."""
    return f"console-{new_id()}"


def read_header_rows(data: QueryDict) -> list[HeaderRow]:
    pairs = zip(data.getlist("header_name"), data.getlist("header_value"), strict=False)
    return [HeaderRow(name, value) for name, value in pairs]


def _parse_number(text: str) -> int | float | str | None:
    """Return the number, or the text if it is not one, so that the API's model reports it."""
    if not text:
        return None
    try:
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else float(text)
    except ValueError:
        return text


def _find_error_line(text: str) -> int | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno
    except (ValueError, RecursionError):
        pass
    return None


def _quote_error_line(message: str, text: str, line: int | None) -> str:
    quoted = text.split("\n")[line - 1].strip()[:80] if line else ""
    return f"{message} The line says: {quoted}" if quoted else message
