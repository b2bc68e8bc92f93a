"""The cast: Acme and an intruder, each with a key that has all scopes, and an operator."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import Client

from eventservice.api import throttling
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey, Tenant
from orchestration import admission

ALL = tuple(ApiKey.Scope.values)
SPEC = {"method": "POST", "url": "http://target.test/hook", "headers": {"X-Shown": "yes"}, "body": {"n": 1}}


@dataclass
class Api:
    """A client with a key, in one tenant."""

    tenant: Tenant
    key: str
    client: Client = field(default_factory=lambda: Client(raise_request_exception=False))

    @property
    def root(self) -> str:
        return f"/api/v1/tenants/{self.tenant.tenant_id}"

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Any:
        path = (
            path
            if path == "/api" or path.startswith(("/api/", "/livez", "/readyz", "/metrics"))
            else self.root + path
        )
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        kind = sent.pop("Content-Type", "application/json" if data else "")
        more: dict[str, Any] = (
            {"CONTENT_TYPE": kind} if kind else {}
        )  # Django's client omits it without a body
        return self.client.generic(method, path, data, kind, headers=sent, **more)

    def get(self, path: str, **options: Any) -> Any:
        return self("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self("POST", path, body, **options)

    def submit(self, **changes: Any) -> dict[str, Any]:
        response = self.post("/service-calls", build_submission(**changes))
        assert response.status_code == 202, response.content
        made: dict[str, Any] = response.json()
        return made


def build_submission(**changes: Any) -> dict[str, Any]:
    return {"name": "greet", "requestSpec": SPEC, "delay": "1h", **changes}


def get_errors(response: Any) -> dict[str, str]:
    """Return the errors of a 400, by pointer."""
    assert response.status_code == 400, response.content
    return {fault["pointer"]: fault["detail"] for fault in response.json()["errors"]}


def create_api(tenant: Tenant, scopes: Collection[str] = ALL) -> Api:
    return Api(tenant, create_key(tenant.tenant_id, scopes)[1])


@pytest.fixture(autouse=True)
def clear_process_state() -> None:
    """Clear what a process keeps for a moment: it would outlive the rows of a test."""
    for forget in (
        throttling.clear_buckets,
        admission.forget_allowances,
    ):
        forget()


@pytest.fixture
def acme(db: None) -> Api:
    return create_api(create_tenant("acme"))


@pytest.fixture
def intruder(db: None) -> Api:
    return create_api(create_tenant("intruder"))


@pytest.fixture
def operator(acme: Api) -> Api:
    """An operator, who may act in every tenant, in Acme's."""
    return Api(acme.tenant, create_key(None, ALL)[1])


@pytest.fixture
def missing() -> uuid.UUID:
    return uuid.UUID("01900000-0000-7000-8000-000000000000")
