"""The address policy that the settings configure."""

from __future__ import annotations

from django.conf import settings

from execution.addresses import AddressPolicy


def configured_address_policy() -> AddressPolicy:
    return AddressPolicy(allow_private=settings.EGRESS_ALLOW_PRIVATE, allow=frozenset(settings.EGRESS_ALLOW))
