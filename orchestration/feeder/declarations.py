"""Declarations of namespaces in a timer store, compared with the namespaces and settings of this cell.

The settings that decide how timers are sent must be the same in all cells that share a store: a cell whose own differ from
those that are declared takes nothing. A change of a tenant's settings moves the declaration on if this cell agreed with it
before. So the cells in which the change has been made send timers, and the others wait until it is made there.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import transaction

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.logging import get_logger
from eventservice.kernel.secrets import Undecipherable
from eventservice.kernel.text import end_sentence
from eventservice.tenants import directory
from eventservice.tenants.directory import (
    TenantProfile,
    get_profile,
    list_namespaces_in_store,
    read_profile,
)
from eventservice.tenants.models import Tenant
from orchestration.feeder.fingerprints import build_fingerprint
from orchestration.feeder.namespaces import TABLE_FINDING
from timers.cell_stores import get_cell_store
from timers.stores.health import examine_store
from timers.stores.port import NamespaceDeclaration, QualifiedNamespace, TimerStore, TimerStoreError

log = get_logger(__name__)

FINDING = "timer_store_namespaces"
# Of a store that cannot be reached, or has no table, nothing else can be said.
USABILITY_FINDINGS = {"timer_store_server", TABLE_FINDING}
MAX_NAMED_NAMESPACES = 10
# The groups of settings in a fingerprint, in words.
GROUPS = {
    "allowedHosts": "allowed hosts",
    "egress": "egress rules (EGRESS_ALLOW, EGRESS_ALLOW_PRIVATE)",
    "signingSecret": "signing secret",
}
# The columns of a tenant that are in a fingerprint.
FINGERPRINTED_COLUMNS = {"allowed_hosts", "signing_secret"}


class NamespaceComparison(NamedTuple):
    """A namespace as this cell and the store have it."""

    namespace: QualifiedNamespace
    # With the tenant's name, if this cell knows the tenant.
    label: str
    # None: this cell has no such namespace in the store.
    num_shards: int | None
    # None: this cell cannot decrypt the signing secret.
    fingerprint: Mapping[str, str] | None
    # None: the store does not know the namespace.
    declared: NamespaceDeclaration | None

    @property
    def differing_groups(self) -> list[str]:
        """The groups of settings that are others here than declared, in words."""
        if self.declared is None or self.fingerprint is None:
            return []
        own, declared = self.fingerprint, self.declared.fingerprint
        # Another release may declare other groups.
        names = [*GROUPS, *sorted((own.keys() | declared.keys()) - GROUPS.keys())]
        return [GROUPS.get(name, name) for name in names if own.get(name) != declared.get(name)]

    @property
    def problem(self) -> str:
        """The reason why this cell sends no timers of the namespace. Empty if it does."""
        if self.num_shards is None:
            return "no namespace of this cell"
        if self.declared is None:
            return "not declared in the store"
        if self.num_shards != self.declared.num_shards:
            return f"{self.num_shards} shards here, and {self.declared.num_shards} in the store"
        if self.fingerprint is None:
            return "its tenant's signing secret cannot be decrypted here"
        groups = self.differing_groups
        return f"other settings here than declared: {', '.join(groups)}" if groups else ""


def compare_namespaces(name: str, store: TimerStore) -> list[NamespaceComparison]:
    """Compare this cell's namespaces in a store with its declarations. Those that only the store has come last."""
    declared = {one.namespace: one for one in store.namespaces()}
    own = [QualifiedNamespace(*found) for found in sorted(list_namespaces_in_store(name))]
    found = [_compare(namespace, declared.pop(namespace, None)) for namespace in own]
    others = sorted(declared.values(), key=lambda one: str(one.namespace))
    return [
        *found,
        *(NamespaceComparison(one.namespace, str(one.namespace), None, None, one) for one in others),
    ]


def _compare(namespace: QualifiedNamespace, declared: NamespaceDeclaration | None) -> NamespaceComparison:
    profile = get_profile(namespace.tenant_id)
    return NamespaceComparison(
        namespace,
        f"{profile.name}/{namespace.name}",
        profile.get_num_shards(namespace.name),
        _find_fingerprint(profile),
        declared,
    )


def _find_fingerprint(profile: TenantProfile) -> Mapping[str, str] | None:
    try:
        return build_fingerprint(profile)
    except Undecipherable:
        return None


def find_num_shards(compared: Sequence[NamespaceComparison]) -> int:
    """Return how many shards the store has: those of the largest namespace. All namespaces share them."""
    return max((one.declared.num_shards for one in compared if one.declared), default=0)


# --- findings -----------------------------------------------------------------------------------------------------


def examine_cell_store(name: str, store: TimerStore) -> list[Finding]:
    """Return the findings on a store, also if it cannot be reached, and on the namespaces that this cell has in it."""
    findings = examine_store(name, store, db_now)
    if any(finding.code in USABILITY_FINDINGS and not finding.is_ok for finding in findings):
        return findings
    try:
        return [*findings, *_examine_namespaces(name, compare_namespaces(name, store))]
    except TimerStoreError as error:
        return [*findings, Finding(FINDING, Severity.ERROR, end_sentence(str(error)), "Run this again.")]


def _examine_namespaces(name: str, compared: Sequence[NamespaceComparison]) -> list[Finding]:
    own = [one for one in compared if one.num_shards is not None]
    others = [one for one in compared if one.num_shards is None]
    wrong = [one for one in own if one.problem]
    findings = [
        Finding(
            FINDING,
            Severity.ERROR,
            f"{name}: {one.label}: {one.problem}. This cell sends none of its timers.",
            _REMEDY.format(store=name),
        )
        for one in wrong[:MAX_NAMED_NAMESPACES]
    ]
    if len(wrong) > MAX_NAMED_NAMESPACES:
        text = f"{name}: this also holds for {len(wrong) - MAX_NAMED_NAMESPACES} other namespaces."
        findings.append(Finding(FINDING, Severity.ERROR, text, _REMEDY.format(store=name)))
    # A cell without namespaces in the store takes no part in dividing the shards.
    if own and others:
        names = ", ".join(one.label for one in others[:MAX_NAMED_NAMESPACES])
        text = f"{name}: {len(others)} of its namespaces are none of this cell, for example {names}."
        findings.append(Finding(FINDING, Severity.WARNING, text, _REMEDY_FOR_UNKNOWN))
    return findings or [Finding(FINDING, Severity.OK, f"{name}: {len(own)} namespaces, all as declared")]


_REMEDY = (
    "Make the settings of all cells the same. Then, if those of this cell are the right ones, run `manage.py timer_store"
    " declare {store}`."
)
_REMEDY_FOR_UNKNOWN = (
    "Their timers are late when this cell owns their shards. Create the tenants with the same ids, and the namespaces: "
    "`manage.py tenant create NAME --id UUID`, `manage.py tenant namespace NAME NAMESPACE --store STORE`."
)


# --- changes ------------------------------------------------------------------------------------------------------


def declare_as_here(
    name: str, store: TimerStore, chosen: Collection[QualifiedNamespace] | None = None
) -> list[NamespaceComparison]:
    """Make a store declare this cell's namespaces, or the chosen ones, with the settings of this cell.

    Return those that changed, as they were before. Raise Conflict if another cell changes one at the same time, and
    TimerStoreError.
    """
    changed = []
    for one in compare_namespaces(name, store):
        is_chosen = chosen is None or one.namespace in chosen
        if not is_chosen or one.num_shards is None or one.fingerprint is None:
            continue
        if one.declared is None:
            store.declare_namespace(one.namespace, one.num_shards, one.fingerprint)
            changed.append(one)
        elif one.differing_groups:
            if not store.change_fingerprint(one.declared, one.fingerprint):
                raise Conflict(
                    "already_exists", f"{one.label} was declared by another cell meanwhile. Try again."
                )
            changed.append(one)
    return changed


def update_tenant(tenant_id: uuid.UUID, **changes: Any) -> Tenant:
    """Change a tenant. Once that is committed, move the declarations of its namespaces on where this cell agreed."""
    if not FINGERPRINTED_COLUMNS & changes.keys():
        return directory.update_tenant(tenant_id, **changes)
    before = read_profile(tenant_id)
    tenant = directory.update_tenant(tenant_id, **changes)
    if before.stores:
        transaction.on_commit(partial(_move_declarations, before, read_profile(tenant_id)))
    return tenant


def _move_declarations(before: TenantProfile, after: TenantProfile) -> None:
    """Replace the fingerprints that this cell had by those that it has now. What is not done here, `doctor` reports."""
    old, new = _find_fingerprint(before), _find_fingerprint(after)
    if old is None or new is None or old == new:
        return
    by_store: defaultdict[str, set[QualifiedNamespace]] = defaultdict(set)
    for name, store in after.stores.items():
        by_store[store].add(QualifiedNamespace(after.tenant_id, name))
    for store, namespaces in by_store.items():
        try:
            cell_store = get_cell_store(store)
            for declared in cell_store.namespaces():
                if declared.namespace in namespaces and declared.fingerprint == old:
                    cell_store.change_fingerprint(declared, new)
        except TimerStoreError as error:
            log.warning("namespaces_not_declared", store=store, error=str(error))
