"""The cast of the console: who may look, who may act, who administers, and who is no operator at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from eventservice.console.session import forget_failures
from eventservice.operators.roles import Role


def signed_in(name: str, *, role: Role | None = None, staff: bool = True) -> Client:
    user = User.objects.create_user(name, is_staff=staff)  # no password: hashing one takes long
    if role is not None:
        # A test that empties the database takes the groups of the migration with it.
        user.groups.add(Group.objects.get_or_create(name=role.group)[0])
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """One that is hashed as it should be takes longer than a page."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    forget_failures()


@pytest.fixture
def viewer(db: None) -> Client:
    return signed_in("vera", role=Role.VIEWER)


@pytest.fixture
def operator(db: None) -> Client:
    return signed_in("oscar", role=Role.OPERATOR)


@pytest.fixture
def admin(db: None) -> Client:
    return signed_in("ada", role=Role.ADMIN)


@pytest.fixture
def outsider(db: None) -> Client:
    return signed_in("otto", staff=False)
