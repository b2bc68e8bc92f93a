"""A digest of each group of settings that decide how a cell sends the timers of a namespace.

Cells that share a timer store must send a timer in the same way, whichever of them takes it. Nothing in a row is encrypted,
so encryption keys are not among the settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from django.conf import settings

from eventservice.kernel.secrets import decrypt_cached
from eventservice.tenants.directory import TenantProfile


def build_fingerprint(tenant: TenantProfile) -> Mapping[str, str]:
    """Return the digests by the names of the groups. Raise Undecipherable if this cell cannot read the signing secret."""
    secret = decrypt_cached(tenant.signing_secret) if tenant.signing_secret else ""
    groups: dict[str, object] = {
        "allowedHosts": sorted(tenant.allowed_hosts),
        "egress": [settings.EGRESS_ALLOW_PRIVATE, sorted(map(str, settings.EGRESS_ALLOW))],
        "signingSecret": secret,
    }
    return {name: _digest(f"{tenant.tenant_id} {name}", value) for name, value in groups.items()}


def _digest(label: str, value: object) -> str:
    return hashlib.sha256(json.dumps([label, value]).encode()).hexdigest()
