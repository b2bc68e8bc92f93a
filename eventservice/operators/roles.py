"""What a signed-in operator may do: look, act on calls, or administer tenants, keys and users.

A role is a group of Django's, so that it is given where users are managed. Superusers are admins; whoever is staff
without one of these groups may look.
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
    """None: this user may not even look."""
    if not (user.is_active and user.is_staff):
        return None
    if user.is_superuser:
        return Role.ADMIN
    groups = user.groups.filter(name__in=BY_GROUP).values_list("name", flat=True)
    return max((BY_GROUP[name] for name in groups), default=Role.VIEWER)
