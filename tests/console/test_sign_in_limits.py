"""Signing in is limited by address and in total before a password is hashed, and locks no user out of a known browser."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from eventservice.kernel.machine_slots import reserve_slot
from eventservice.operators.client_address import describe_client, find_client_address
from eventservice.operators.sign_in_limits import IN_TOTAL, MAX_COMPARISONS, PER_ADDRESS, PER_NAME

PASSWORD = "correct horse battery"


class CountingHasher(MD5PasswordHasher):
    algorithm = "counting"
    hashed = 0

    def encode(self, password: str, salt: str) -> str:
        CountingHasher.hashed += 1
        return super().encode(password, salt)


@pytest.fixture(autouse=True)
def counting_hasher(fast_password_hasher: None, settings: Any) -> None:
    settings.PASSWORD_HASHERS = [f"{__name__}.CountingHasher"]
    CountingHasher.hashed = 0


@pytest.fixture
def otto(db: None) -> User:
    return User.objects.create_user("otto", password=PASSWORD, is_staff=True)


def sign_in(client: Client, name: str, password: str, address: str = "192.0.2.1") -> Any:
    form = {"username": name, "password": password}
    return client.post("/login/", form, REMOTE_ADDR=address, headers={"Accept": "text/html"})


def test_random_names_from_random_addresses_cost_few_hashes(db: None) -> None:
    pages = [sign_in(Client(), f"random-{n}", "guess", f"198.51.100.{n}") for n in range(60)]
    assert CountingHasher.hashed == IN_TOTAL.max_attempts
    assert [page.status_code for page in pages[-40:]] == [429] * 40


def test_random_names_from_one_address_leave_other_addresses_alone(otto: User) -> None:
    for limit in (PER_ADDRESS, IN_TOTAL):
        assert limit.max_attempts > 0
    for number in range(PER_ADDRESS.max_attempts):
        IN_TOTAL.clear()  # as if they came slowly
        sign_in(Client(), f"random-{number}", "guess")
    IN_TOTAL.clear()
    assert sign_in(Client(), "otto", PASSWORD).status_code == 429
    assert sign_in(Client(), "otto", PASSWORD, "192.0.2.2").status_code == 302


def test_successes_are_not_counted(otto: User) -> None:
    pages = [sign_in(Client(), "otto", PASSWORD) for _ in range(2 * PER_ADDRESS.max_attempts)]
    assert {page.status_code for page in pages} == {302}


def test_nobody_locks_a_user_out_of_a_browser_that_the_user_has_used(otto: User) -> None:
    known = Client()
    sign_in(known, "otto", PASSWORD)
    known.post("/logout/")
    for number in range(PER_NAME.max_attempts):
        sign_in(Client(), "otto", "guess", f"198.51.100.{number}")
        sign_in(Client(), f"random-{number}", "guess", f"198.51.100.{number}")
    assert sign_in(Client(), "otto", PASSWORD).status_code == 429
    assert sign_in(known, "otto", PASSWORD).status_code == 302


def test_a_known_browser_may_fail_only_so_often_and_is_known_for_one_user(otto: User) -> None:
    known = Client()
    sign_in(known, "otto", PASSWORD)
    known.post("/logout/")
    for _ in range(PER_NAME.max_attempts):
        assert sign_in(known, "otto", "guess").status_code == 200
    assert sign_in(known, "otto", PASSWORD).status_code == 429
    for number in range(IN_TOTAL.max_attempts):
        sign_in(known, f"random-{number}", "guess", f"198.51.100.{number}")
    assert sign_in(known, "other", "guess").status_code == 429


def test_a_forged_cookie_makes_no_browser_known(otto: User) -> None:
    client = Client()
    client.cookies["known_browser"] = "Im90dG8i:1wIxyz:forged"
    for _ in range(PER_NAME.max_attempts):
        sign_in(client, "otto", "guess")
    assert "for this username" in sign_in(client, "otto", PASSWORD).content.decode()


def test_one_password_is_compared_at_a_time(otto: User) -> None:
    hashed = CountingHasher.hashed
    with reserve_slot("password", MAX_COMPARISONS) as is_reserved:
        assert is_reserved
        page = sign_in(Client(), "otto", PASSWORD)
        assert (page.status_code, page["Retry-After"]) == (429, "1")
        assert "Somebody else is signing in" in page.content.decode()
    assert CountingHasher.hashed == hashed
    assert sign_in(Client(), "otto", PASSWORD).status_code == 302


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),  # not from a trusted proxy
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "198.51.100.7, 203.0.113.9", "203.0.113.9"),  # the client has written the first
        ("127.0.0.1", "198.51.100.7, 203.0.113.9, 10.0.0.5", "203.0.113.9"),
        ("", "203.0.113.9", "203.0.113.9"),  # a Unix socket
        ("127.0.0.1", None, None),
        ("127.0.0.1", "unknown", None),
        ("127.0.0.1", "203.0.113.9, unknown", None),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
    ],
)
def test_the_address_is_what_a_trusted_proxy_says(
    settings: Any, peer: str, forwarded: str | None, found: str | None
) -> None:
    settings.TRUSTED_PROXIES = ["127.0.0.0/8", "10.0.0.5"]
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    assert find_client_address(RequestFactory().get("/", REMOTE_ADDR=peer, headers=headers)) == found


@pytest.mark.parametrize(
    ("peer", "forwarded", "text"),
    [
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),  # a client on the host of the proxy
        ("127.0.0.1", "127.0.0.9, 10.0.0.5", "127.0.0.9"),
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "garbage, 10.0.0.5", "unknown"),
        ("", None, "unknown"),
    ],
)
def test_a_log_has_the_farthest_address_if_all_are_trusted(
    settings: Any, peer: str, forwarded: str | None, text: str
) -> None:
    settings.TRUSTED_PROXIES = ["127.0.0.0/8", "10.0.0.5"]
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    assert describe_client(RequestFactory().get("/", REMOTE_ADDR=peer, headers=headers)) == text
