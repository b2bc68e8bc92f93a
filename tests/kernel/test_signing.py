"""The signatures of Standard Webhooks; that receivers can verify what is sent is shown where it is sent."""

from __future__ import annotations

import binascii
from datetime import UTC, datetime

import pytest

from eventservice.kernel.signing import key_of, new_secret, signature_headers


def test_the_published_example_is_signed_as_published() -> None:
    """The example of the Standard Webhooks libraries' own tests."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    moment = datetime.fromtimestamp(1614265330, UTC)
    assert signature_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", moment, b'{"test": 2432232314}') == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_new_secret_is_a_key_of_its_own_of_32_bytes() -> None:
    first, second = new_secret(), new_secret()
    assert first.startswith("whsec_")
    assert key_of(first) != key_of(second)
    assert len(key_of(first)) == 32


def test_what_is_not_base64_is_no_key() -> None:
    with pytest.raises(binascii.Error):
        key_of("whsec_abcde")
