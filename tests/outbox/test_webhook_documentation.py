"""The example and the limits in docs/webhooks.md are true."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eventservice.kernel.signing import build_signature_headers, decode_secret, generate_secret
from orchestration.events import EventType
from outbox.publishers.webhook.deliverer import TIMEOUT_SECONDS
from outbox.publishers.webhook.delivery_queue import MAX_ATTEMPTS, MAX_RETRY_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
BODY = b'{"id": "1"}'


@pytest.fixture
def verify() -> Callable[..., None]:
    match = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert match
    names: dict[str, Any] = {}
    exec(match[1], names)
    found: Callable[..., None] = names["verify"]
    return found


def sign(secret: str, ago: float = 0) -> dict[str, str]:
    moment = datetime.fromtimestamp(time.time() - ago, UTC)
    return build_signature_headers(decode_secret(secret), "1", moment, BODY)


def test_its_example_verifies_our_signatures(verify: Callable[..., None]) -> None:
    secret = generate_secret()
    verify(secret, sign(secret), BODY)


@pytest.mark.parametrize(
    ("ago", "body", "same"), [(0, b"other", True), (0, BODY, False), (3600, BODY, True), (-3600, BODY, True)]
)
def test_its_example_refuses_other_and_old_signatures(
    verify: Callable[..., None], ago: float, body: bytes, same: bool
) -> None:
    secret = generate_secret()
    with pytest.raises(ValueError, match=r"match|too old"):
        verify(secret if same else generate_secret(), sign(secret, ago), body)


def test_it_names_every_event_type_and_every_limit() -> None:
    assert [str(event_type) for event_type in EventType if f"`{event_type}`" not in PAGE] == []
    assert f"after {MAX_ATTEMPTS} attempts" in PAGE
    assert f"up to {MAX_RETRY_SECONDS / 3600:.0f} hours" in PAGE
    assert f"within {TIMEOUT_SECONDS:.0f} seconds" in PAGE
