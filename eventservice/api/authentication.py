"""Authentication by the API key of a tenant or an operator, or by the session of an operator who is signed in."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from rest_framework.authentication import SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from eventservice.kernel.ttl_cache import TTLCache
from eventservice.operators.roles import role_of
from eventservice.tenants.keys import find_key, record_use
from eventservice.tenants.models import ApiKey

# A key is looked up at most once in this time, so a revoked key stays valid for as long.
CACHE_SECONDS = 1.0
CHALLENGE = 'Bearer realm="event-service"'

Scope = ApiKey.Scope


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `tenant_id` is None for an operator, who may act in every tenant."""

    name: str
    tenant_id: uuid.UUID | None
    scopes: frozenset[str]
    by_session: bool = False

    @property
    def is_operator(self) -> bool:
        return self.tenant_id is None

    # The members that Django REST framework and the audit log expect of a user.
    is_authenticated = True

    def get_username(self) -> str:
        return self.name


_principals: TTLCache[bytes, Principal | None] = TTLCache(CACHE_SECONDS)


def find_principal(text: str) -> Principal | None:
    """Return the principal of a key. Only valid keys are cached: each guess costs a query."""
    digest = hashlib.sha256(text.encode(errors="replace")).digest()
    return _principals.get(digest, lambda: _load_principal(text))


def _load_principal(text: str) -> Principal | None:
    key = find_key(text)
    if key is None:
        return None
    record_use(key)
    return Principal(f"key:{key.key_id}", key.tenant_id, frozenset(key.scopes))


class ApiKeyAuthentication(SessionAuthentication):
    """`Authorization: Bearer es_…`, or without that header the session of a signed-in operator."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        header = get_authorization_header(request)
        if not header:
            return _from_session(super().authenticate(request))
        scheme, _, text = header.partition(b" ")
        is_bearer, text = scheme.lower() == b"bearer", text.strip()
        principal = find_principal(text.decode("latin-1")) if is_bearer else None
        if principal is None:
            invalid = "The API key is not valid: it is unknown, expired or revoked."
            raise AuthenticationFailed(
                invalid if is_bearer and text else "Send `Authorization: Bearer es_…`."
            )
        return principal, None

    def enforce_csrf(self, request: Request) -> None:
        """Look for the token in the header only: a body that is not a form must not be parsed as one."""
        django_request: Any = request._request
        django_request._post, django_request._files = QueryDict(), MultiValueDict()
        super().enforce_csrf(django_request)

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


def _from_session(authenticated: tuple[AbstractBaseUser, object] | None) -> tuple[Principal, None] | None:
    """Return an operator who may only read: what operators change goes through the console, which records it."""
    if authenticated is None or role_of(authenticated[0]) is None:
        return None
    name = f"user:{authenticated[0].get_username()}"
    return Principal(name, None, frozenset({Scope.READ.value}), by_session=True), None
