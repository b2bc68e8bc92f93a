"""What the Request page's form is filled with from elsewhere: a call that there is, a curl command line, a login."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eventservice.api.call_submission import DEFAULT_TIMEOUT
from eventservice.api.fields import format_duration
from eventservice.api.parsers import parse_json
from eventservice.api.problems import Problem
from eventservice.console.calls.curl import Pasted
from eventservice.console.calls.local_time import chosen_of
from eventservice.console.calls.request_form import DURATIONS, Draft, Faults, HeaderRow, body_of, pretty
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import DEFAULT_NAMESPACE
from execution.redaction import mask_sealed
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, LIVE


def new_draft(tenant: str = "") -> Draft:
    return Draft(key=new_key(), tenant=tenant)


def new_key() -> str:
    return f"console-{new_id()}"


def draft_of(call: Mapping[str, Any], *, again: bool = False) -> Draft:
    """Of a call that there is. Its secrets are not in it. `again`: as it was submitted a moment ago."""
    spec = call["request_spec"]
    kind, body = _shown_body(spec.get("body"))
    draft = replace(
        new_draft(str(call["tenant_id"])),
        name=call["name"],
        method=spec["method"],
        url=spec["url"],
        headers=_copied_rows(spec.get("headers") or {}),
        body_kind=kind,
        body=body,
        tags=", ".join(sorted(set(call["tags"]) - {FAVORITE})),
        timeout=_unless(call["timeout_seconds"], DEFAULT_TIMEOUT),
        namespace="" if call["namespace"] == DEFAULT_NAMESPACE else call["namespace"],
        delivery=call["delivery"],
    )
    texts = _shown_policy(call["retry_policy"])
    if again:
        texts["favorite"] = "on" if FAVORITE in call["tags"] else ""
        if call["status"] in LIVE and not call["attempt"] and call["due_at"] > call["submitted_at"]:
            texts |= {"when": "schedule", **chosen_of(call["due_at"])}
    for place, text in texts.items():
        setattr(draft, place, text)
    return draft


def _copied_rows(headers: Mapping[str, Any]) -> list[HeaderRow]:
    shown = mask_sealed(headers)
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


def with_pasted(draft: Draft, pasted: Pasted) -> Draft:
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


def _pasted_body(pasted: Pasted) -> tuple[str, str]:
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
