"""Random names that sign in do not slow down the API: their passwords are limited before they are hashed."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable

import pytest
import requests

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from tests.process_harness import ProcessHarness, find_free_address, is_serving, report, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]

SECONDS = 15.0
WORKERS = 2
ATTACKERS = 4


@pytest.fixture
def url(harness: ProcessHarness) -> str:
    address = find_free_address()
    harness.start_web(address, "--workers", str(WORKERS))
    url = f"http://{address}"
    wait_until(lambda: is_serving(url), "the web server responds")
    return url


def measure(ask: Callable[[], object], seconds: float) -> list[float]:
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        ask()
        taken.append((time.monotonic() - begin) * 1000)
        time.sleep(0.01)
    return taken


def attack(url: str, number: int, is_over: threading.Event) -> None:
    with requests.Session() as session:
        page = session.get(f"{url}/login/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token is not None
        while not is_over.is_set():
            name = f"random-{number}-{time.monotonic_ns()}"
            form = {"username": name, "password": "guess", "csrfmiddlewaretoken": token[1]}
            session.post(f"{url}/login/", form)
            time.sleep(0.2)


def test_random_names_that_sign_in_do_not_starve_the_api(url: str) -> None:
    tenant = create_tenant("acme")
    headers = {"Authorization": f"Bearer {create_key(tenant.tenant_id, ['read'])[1]}"}
    address = f"{url}/api/v1/tenants/{tenant.tenant_id}/service-calls"

    def ask() -> None:
        assert requests.get(address, headers=headers, timeout=60).status_code == 200

    idle = measure(ask, 3)
    is_over = threading.Event()
    attackers = [threading.Thread(target=attack, args=(url, number, is_over)) for number in range(ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    attacked = measure(ask, SECONDS)
    is_over.set()
    for attacker in attackers:
        attacker.join()
    before, median = statistics.median(idle), statistics.median(attacked)
    report(
        f"median {before:.0f} ms idle, {median:.0f} ms attacked, longest {max(attacked):.0f} ms, {len(attacked)} requests"
    )
    assert median < max(50.0, 5 * before)
