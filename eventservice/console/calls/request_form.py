"""What the Request page's form holds, as it was typed, and the API's document that it stands for.

The form decides nothing: `command_of` makes the document that a program would send to the API and has it parsed where
all submissions are; what is wrong there is shown at the field that the pointer leads to.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from django.http import QueryDict

from eventservice.api.formats import format_duration, format_instant
from eventservice.api.parsers import is_storable, parse_json
from eventservice.api.problems import FieldError, Problem
from eventservice.api.schema.calls import DEFAULT_TIMEOUT, parse_submission
from eventservice.api.schema.types import CallContext
from eventservice.console.calls.curl import CurlRequest
from eventservice.console.calls.local_time import BadMoment, chosen_of, moment_of
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import TenantProfile
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.redaction import mask_headers, mask_stored_headers
from orchestration.commands import SubmitServiceCall
from orchestration.queries.calls import CallDetails
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, LIVE, Delivery

EMPTY_ROWS = 2
DURATIONS = {
    "initial_interval": "initialInterval",
    "max_interval": "maxInterval",
    "max_attempts_duration": "maxAttemptsDuration",
}
# Where a pointer into the document leads to in the form; one step of a pointer may be enough.
PLACES = {
    "/name": "name",
    "/requestSpec/method": "method",
    "/requestSpec/url": "url",
    "/requestSpec/headers": "headers",
    "/requestSpec/body": "body",
    "/dueAt": "date",
    "/tags": "tags",
    "/namespace": "namespace",
    "/timeoutSeconds": "timeout",
    "/delivery": "delivery",
    "/retryPolicy/maxAttempts": "max_attempts",
    "/retryPolicy/backoffMultiplier": "backoff",
    **{f"/retryPolicy/{name}": place for place, name in DURATIONS.items()},
}
LABELS = {
    "name": "Name",
    "method": "Method",
    "url": "URL",
    "headers": "Headers",
    "body": "Body",
    "date": "The time",
    "namespace": "Namespace",
    "timeout": "Timeout",
    "delivery": "Delivery",
    "max_attempts": "Attempts",
    "backoff": "Factor",
    "initial_interval": "First pause",
    "max_interval": "Longest pause",
    "max_attempts_duration": "Time for all attempts",
}
ADVANCED = frozenset(
    {"timeout", "namespace", "delivery", "max_attempts", "backoff", *DURATIONS},
)
# In place of a tenant that is still to be chosen, so that all else can be judged: it has no rules of its own.
ANYBODY = TenantProfile(
    tenant_id=uuid.UUID(int=0),
    name="",
    active=False,
    max_in_flight=0,
    max_pending=0,
    requests_per_minute=0,
    secret_headers=frozenset(),
    allowed_hosts=frozenset(),
    signing_secret="",
    num_shards={DEFAULT_NAMESPACE: 1},
)


@dataclass(slots=True)
class HeaderRow:
    name: str = ""
    value: str = ""
    wrong: str = ""
    hint: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.name.strip() or self.value.strip())


@dataclass(slots=True)
class Draft:
    # Made with the form, and new after each submission: what it is sent with twice makes one call.
    key: str = ""
    tenant: str = ""
    name: str = ""
    method: str = "POST"
    url: str = ""
    when: str = "now"
    date: str = ""
    time: str = ""
    zone: str = ""
    body_kind: str = "json"
    body: str = ""
    tags: str = ""
    favorite: str = ""
    timeout: str = ""
    namespace: str = ""
    delivery: str = ""
    max_attempts: str = ""
    backoff: str = ""
    initial_interval: str = ""
    max_interval: str = ""
    max_attempts_duration: str = ""
    curl: str = ""
    headers: list[HeaderRow] = field(default_factory=list)

    @classmethod
    def from_post(cls, post: QueryDict) -> Draft:
        texts = {name: post.get(name, "") for name in TEXTS}
        rows = zip(post.getlist("header_name"), post.getlist("header_value"), strict=False)
        # Browsers send line breaks as CR LF, whatever was typed.
        texts["body"] = texts["body"].replace("\r\n", "\n")
        return cls(**texts, headers=[HeaderRow(name, value) for name, value in rows])

    @property
    def is_scheduled(self) -> bool:
        return self.when == "schedule"

    @property
    def rows(self) -> list[HeaderRow]:
        """What is filled, and some to be filled."""
        filled = [row for row in self.headers if not row.is_empty]
        return [*filled, *(HeaderRow() for _ in range(max(1, EMPTY_ROWS - len(filled))))]

    @property
    def has_advanced(self) -> bool:
        """Something in it is not as it usually is."""
        return any(getattr(self, name) not in ("", Delivery.AT_LEAST_ONCE) for name in ADVANCED)


TEXTS = tuple(one.name for one in fields(Draft) if one.name != "headers")


class Faults:
    """What is wrong, by the field of the form."""

    def __init__(self) -> None:
        self.by_field: dict[str, list[str]] = defaultdict(list)
        self.body_line: int | None = None

    def add(self, place: str, text: str) -> None:
        self.by_field[place].append(text)

    def __bool__(self) -> bool:
        return bool(self.by_field)

    def take(self, errors: Iterable[FieldError], draft: Draft) -> None:
        """The API's, each put where it belongs."""
        for pointer, rule in errors:
            row = _row_of(pointer, draft)
            place = next((p for start, p in PLACES.items() if _leads(pointer, start)), "form")
            if row is not None:
                row.wrong = f"{row.name.strip() or 'This header'} {rule}."
                self.add("header_rows", row.wrong)
            elif place == "tags":
                self.add(place, _tag_fault(pointer, rule, draft))
            else:
                self.add(place, f"{LABELS.get(place, pointer)} {rule}.")


def _leads(pointer: str, start: str) -> bool:
    return pointer == start or pointer.startswith(start + "/")


def _row_of(pointer: str, draft: Draft) -> HeaderRow | None:
    start = "/requestSpec/headers/"
    if not pointer.startswith(start):
        return None
    name = pointer.removeprefix(start).replace("~1", "/").replace("~0", "~")
    return next((row for row in draft.headers if row.name.strip()[:200] == name), None)


def _tag_fault(pointer: str, rule: str, draft: Draft) -> str:
    index = pointer.removeprefix("/tags").strip("/")
    tags = tags_of(draft)
    if index.isdecimal() and int(index) < len(tags):
        return f"The tag {tags[int(index)][:70]!r} {rule}."
    return f"Tags {rule}."


# --- to a command ---------------------------------------------------------------------------------------------


def command_of(
    draft: Draft, tenant: TenantProfile | None, correlation_id: uuid.UUID, now: datetime, faults: Faults
) -> SubmitServiceCall | None:
    """None: `faults` tell why."""
    document = _document(draft, tenant, now, faults)
    if tenant is None:
        del document["namespace"]  # only a tenant has any
    try:
        command = parse_submission(document, CallContext(tenant or ANYBODY, correlation_id))
    except Problem as refused:
        faults.take(refused.errors, draft)
        return None
    return None if faults or tenant is None else command


def _document(draft: Draft, tenant: TenantProfile | None, now: datetime, faults: Faults) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": draft.name.strip(),
        "requestSpec": {
            "method": draft.method,
            "url": draft.url.strip(),
            "headers": _headers(draft, tenant, faults),
            "body": body_of(draft, faults),
        },
        "tags": tags_of(draft),
        "idempotencyKey": draft.key,
        "timeoutSeconds": _number(draft.timeout),
        "namespace": draft.namespace.strip() or None,
        "delivery": draft.delivery or None,
        "retryPolicy": _policy(draft),
    }
    if draft.is_scheduled:
        try:
            document["dueAt"] = format_instant(moment_of(chosen(draft), now).at)
        except BadMoment as wrong:
            for place, text in wrong.faults.items():
                faults.add(place, text)
    return document


def chosen(draft: Draft) -> dict[str, str]:
    return {"date": draft.date, "time": draft.time, "zone": draft.zone}


def tags_of(draft: Draft) -> list[str]:
    tags = [tag.strip() for tag in draft.tags.replace("\n", ",").split(",")]
    return [*dict.fromkeys(filter(None, tags)), *([FAVORITE] if draft.favorite else [])]


def _headers(draft: Draft, tenant: TenantProfile | None, faults: Faults) -> dict[str, str]:
    headers: dict[str, str] = {}
    for row in draft.headers:
        name, value = row.name.strip(), row.value.strip()
        if row.is_empty:
            continue
        if not name:
            row.wrong = "This value needs a name."
        elif name in headers:
            row.wrong = f"{name} is there already."
        elif not value and is_secret(name, tenant):
            row.wrong = f"{name} needs a value: a secret is never copied. Type it, or take the row out."
        else:
            headers[name] = value
            continue
        faults.add("header_rows", row.wrong)
    return headers


def is_secret(name: str, tenant: TenantProfile | None) -> bool:
    return bool(mask_headers({name: ""}, tenant.secret_headers if tenant else ())[name])


def body_of(draft: Draft, faults: Faults) -> Any:
    """What JSON says, or the text as it is; nothing at all when there is none."""
    if not draft.body.strip() and (draft.body_kind == "json" or not draft.body):
        return None
    if draft.body_kind != "json":
        if not is_storable(draft.body):
            faults.add("body", "The body has a NUL character or half a surrogate pair.")
        return draft.body
    try:
        body = parse_json(draft.body)
    except Problem as refused:
        faults.body_line = _line_of(draft.body)
        faults.add("body", _explained(refused.detail, draft.body, faults.body_line))
        return None
    if body is None or isinstance(body, str):
        faults.add(
            "body", "A text or null by itself is sent as Text: choose that, and type what is to be sent."
        )
        return None
    return body


def _line_of(text: str) -> int | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as wrong:
        return wrong.lineno
    except (ValueError, RecursionError):
        pass
    return None


def _explained(detail: str, text: str, line: int | None) -> str:
    if line is None:
        return detail
    quoted = text.split("\n")[line - 1].strip()[:80]
    return f"{detail} There it says: {quoted}" if quoted else detail


def _policy(draft: Draft) -> dict[str, Any] | None:
    policy: dict[str, Any] = {name: getattr(draft, place).strip() for place, name in DURATIONS.items()}
    policy |= {"maxAttempts": _number(draft.max_attempts), "backoffMultiplier": _number(draft.backoff)}
    return {name: value for name, value in policy.items() if value not in ("", None)} or None


def _number(text: str) -> Any:
    """What is no number stays what it is, for the parser to refuse."""
    text = text.strip()
    if not text:
        return None
    try:
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else float(text)
    except ValueError:
        return text


def pretty(body: Any) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False)


def new_draft(tenant: str = "") -> Draft:
    return Draft(key=new_key(), tenant=tenant)


def new_key() -> str:
    return f"console-{new_id()}"


def draft_of(call: CallDetails, *, again: bool = False) -> Draft:
    """Of a call that there is. Its secrets are not in it. `again`: as it was submitted a moment ago."""
    spec = call.request_spec
    kind, body = _shown_body(spec.get("body"))
    draft = replace(
        new_draft(str(call.tenant_id)),
        name=call.name,
        method=spec["method"],
        url=spec["url"],
        headers=_copied_rows(spec.get("headers") or {}),
        body_kind=kind,
        body=body,
        tags=", ".join(sorted(set(call.tags) - {FAVORITE})),
        timeout=_unless(call.timeout_seconds, DEFAULT_TIMEOUT),
        namespace="" if call.namespace == DEFAULT_NAMESPACE else call.namespace,
        delivery=call.delivery,
    )
    texts = _shown_policy(call.retry_policy)
    if again:
        texts["favorite"] = "on" if FAVORITE in call.tags else ""
        if call.status in LIVE and not call.attempt and call.due_at > call.submitted_at:
            texts |= {"when": "schedule", **chosen_of(call.due_at)}
    for place, text in texts.items():
        setattr(draft, place, text)
    return draft


def _copied_rows(headers: Mapping[str, Any]) -> list[HeaderRow]:
    shown = mask_stored_headers(headers)
    hint = "This secret is not copied: type it again, or use Replay."
    return [
        HeaderRow(name, "", hint=hint) if isinstance(headers[name], dict) else HeaderRow(name, value)
        for name, value in shown.items()
    ]


def _shown_body(body: Any) -> tuple[str, str]:
    if body is None:
        return "json", ""
    return ("text", body) if isinstance(body, str) else ("json", pretty(body))


def _unless(value: float, usual: float) -> str:
    return "" if value == usual else f"{value:g}"


def _shown_policy(stored: Mapping[str, Any] | None) -> dict[str, str]:
    if stored is None:
        return {}
    policy = RetryPolicy.from_stored(stored)
    durations = {place: format_duration(getattr(policy, place)) or "" for place in DURATIONS}
    return {
        **durations,
        "max_attempts": str(policy.max_attempts),
        "backoff": f"{policy.backoff_multiplier:g}",
    }


def with_pasted(draft: Draft, pasted: CurlRequest) -> Draft:
    """The request of a curl command line in place of the one that is there."""
    kind, body = _pasted_body(pasted)
    host = pasted.url.split("://")[-1].split("/")[0].split("?")[0]
    return replace(
        draft,
        name=draft.name or f"{pasted.method} {host}"[:200],
        method=pasted.method,
        url=pasted.url,
        headers=[HeaderRow(name, value) for name, value in pasted.headers],
        body_kind=kind,
        body=body,
        timeout=pasted.timeout_seconds or draft.timeout,
        curl="",
    )


def _pasted_body(pasted: CurlRequest) -> tuple[str, str]:
    if pasted.body is None:
        return "json", ""
    kinds: Sequence[str] = [value for name, value in pasted.headers if name.lower() == "content-type"]
    if any("json" in kind.lower() for kind in kinds):
        try:
            body = parse_json(pasted.body)
        except Problem:
            return "text", pasted.body
        if isinstance(body, dict | list):
            return "json", pretty(body)
    return "text", pasted.body


def formatted(draft: Draft, faults: Faults) -> Draft:
    """The body set out for reading, when it is JSON."""
    body = body_of(draft, faults) if draft.body_kind == "json" else None
    return draft if body is None or faults else replace(draft, body=pretty(body))


def restored(draft: Draft) -> Draft:
    """As a browser kept it while its operator signed in. It keeps no values of headers."""
    hint = "The value was not kept: type it again."
    return replace(
        draft, headers=[HeaderRow(row.name, hint=hint) for row in draft.headers if row.name.strip()]
    )
