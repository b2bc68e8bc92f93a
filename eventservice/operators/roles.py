"""The roles of signed-in operators: viewers look, operators act on calls, admins manage tenants, keys and users.

A role is a Django group, so that it is assigned where users are managed. Superusers are admins; staff without one of
these groups are viewers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Role(IntEnum):
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def group(self) -> str:
        return self.name.lower()


BY_GROUP = {role.group: role for role in Role}


def role_of(user: Any) -> Role | None:
    """Return the highest role of a user, or None if the user may not sign in to the console."""
    if not (user.is_active and user.is_staff):
        return None
    if user.is_superuser:
        return Role.ADMIN
    groups = user.groups.filter(name__in=BY_GROUP).values_list("name", flat=True)
    return max((BY_GROUP[name] for name in groups), default=Role.VIEWER)
