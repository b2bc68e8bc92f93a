"""Timers, shards and nodes, read-only: the poller and the nodes write them."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest

from eventservice.adminsite.change_lists import DateHierarchy, TenantFilter, choice, is_searching
from eventservice.adminsite.columns import call_link, moment, pill, tenant, when
from eventservice.adminsite.composite_pk import uuid_of
from eventservice.adminsite.model_admin import Domain, ReadOnly
from eventservice.tenants.directory import list_tenant_ids
from timers.models import Node, TimerSchedule, TimerShard, TimerState


@admin.register(TimerSchedule)
class TimerScheduleAdmin(Domain):
    list_display = (
        when("due_at"), tenant, pill("state"), call_link(short=True), "host", "shard_id", when("reached_at"),
    )  # fmt: skip
    fields = (
        moment("due_at"), tenant, pill("state"), call_link(), "host", "shard_id", moment("registered_at"),
        moment("reached_at"), "correlation_id", "claim_version",
    )  # fmt: skip
    list_filter = (
        TenantFilter,
        choice("state", TimerState.choices, preset=TimerState.SCHEDULED),
        DateHierarchy,
    )
    search_help_text = "A call's id or a correlation id, of any tenant."

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        """What is scheduled: the next one first. What has been reached: the last one."""
        if is_searching(request):
            return ("-service_call_id",)
        return ("-due_at",) if request.GET.get("state") == TimerState.REACHED else ("due_at",)

    def date_column(self, request: HttpRequest) -> str | None:
        return None if is_searching(request) else "due_at"

    def find(self, request: HttpRequest, text: str) -> Q:
        wanted = uuid_of(text)
        if wanted is None:
            return Q(pk__in=[])
        called = Q(tenant_id__in=list_tenant_ids(), service_call_id=wanted)
        known = TimerSchedule.across_tenants.filter(called).exists()
        return called if known else Q(correlation_id=wanted)


@admin.register(TimerShard)
class TimerShardAdmin(ReadOnly):
    list_display = ("shard_id", "owner_id", moment("claimed_at"), moment("lease_until"), "version")
    fields = (*list_display, "metadata")
    search_fields = ("=shard_id",)
    ordering = ("shard_id",)


@admin.register(Node)
class NodeAdmin(ReadOnly):
    list_display = (
        "owner_id", "role", "hostname", "process_id", "in_flight", moment("started_at"), moment("lease_until"),
    )  # fmt: skip
    fields = list_display
    list_filter = ("role",)
    search_fields = ("hostname",)
    ordering = ("started_at",)
