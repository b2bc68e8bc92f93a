"""Signatures follow Standard Webhooks. Tests of what is sent show that receivers can verify them."""

from __future__ import annotations

import binascii
from datetime import UTC, datetime

import pytest

from eventservice.kernel.signing import build_signature_headers, decode_secret, generate_secret


def test_the_published_example_is_signed_as_published() -> None:
    """The example of the Standard Webhooks libraries' own tests."""
    key = decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    moment = datetime.fromtimestamp(1614265330, UTC)
    assert build_signature_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", moment, b'{"test": 2432232314}') == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_new_secret_is_a_different_key_of_32_bytes() -> None:
    first, second = generate_secret(), generate_secret()
    assert first.startswith("whsec_")
    assert decode_secret(first) != decode_secret(second)
    assert len(decode_secret(first)) == 32


def test_a_secret_that_is_not_base64_is_refused() -> None:
    with pytest.raises(binascii.Error):
        decode_secret("whsec_abcde")
