"""A tenant's signing secret is decrypted when a request is built, and not before."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from cryptography.fernet import MultiFernet

from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.directory import create_tenant
from tests.orchestration.support import FakeEgress, build_engine, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_engine_signs_and_decrypts_the_secret_once() -> None:
    clear_caches()
    tenant = create_tenant("acme", signing_secret=SECRET)
    for _ in range(3):
        submit(tenant)
    with patch.object(MultiFernet, "decrypt", autospec=True, side_effect=MultiFernet.decrypt) as opened:
        egress = FakeEgress()
        build_engine(egress).poll_now()
    assert [dict(attempt.headers)["webhook-signature"][:3] for attempt in egress.sent] == ["v1,"] * 3
    assert opened.call_count == 1
