"""Clients of the console, one for each role and one for a user who has none."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from eventservice.operators.roles import Role
from eventservice.operators.sign_in_limits import clear_limits


def create_client(name: str, *, role: Role | None = None, staff: bool = True) -> Client:
    user = User.objects.create_user(name, is_staff=staff)  # without a password, since hashing one is slow
    if role is not None:
        # A test that empties the database takes the groups of the migration with it.
        user.groups.add(Group.objects.get_or_create(name=role.group)[0])
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture(autouse=True)
def fast_password_hasher(settings: Any) -> None:
    """Hash passwords with a fast algorithm: the real one takes longer than a page."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def no_failed_sign_ins() -> None:
    clear_limits()


@pytest.fixture
def viewer(db: None) -> Client:
    return create_client("vera", role=Role.VIEWER)


@pytest.fixture
def operator(db: None) -> Client:
    return create_client("oscar", role=Role.OPERATOR)


@pytest.fixture
def admin(db: None) -> Client:
    return create_client("ada", role=Role.ADMIN)


@pytest.fixture
def outsider(db: None) -> Client:
    return create_client("otto", staff=False)
