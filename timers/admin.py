"""Timers, shards and nodes, read-only: only the engine writes them."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest

from eventservice.adminsite.change_lists import DateHierarchy, TenantFilter, choice_filter, is_search
from eventservice.adminsite.columns import (
    call_column,
    list_time_column,
    status_column,
    tenant_column,
    time_column,
)
from eventservice.adminsite.composite_pk import parse_uuid
from eventservice.adminsite.model_admin import LargeTableAdmin, ReadOnlyAdmin
from eventservice.tenants.directory import list_tenant_ids
from timers.models import Node, ShardSize, TimerSchedule, TimerShard, TimerState


@admin.register(TimerSchedule)
class TimerScheduleAdmin(LargeTableAdmin[TimerSchedule]):
    list_display = (
        list_time_column("due_at"), tenant_column, status_column("state"), call_column(short=True), "host", "shard_id", list_time_column("reached_at"),
    )  # fmt: skip
    fields = (
        time_column("due_at"), tenant_column, status_column("state"), call_column(), "host", "shard_id", time_column("registered_at"),
        time_column("reached_at"), "correlation_id", "claim_version",
    )  # fmt: skip
    list_filter = (
        TenantFilter,
        choice_filter("state", TimerState.choices, preset=TimerState.SCHEDULED),
        DateHierarchy,
    )
    search_help_text = "A call id or correlation id of any tenant."

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        """Show the next scheduled timer first, or the latest reached one."""
        if is_search(request):
            return ("-service_call_id",)
        return ("-due_at",) if request.GET.get("state") == TimerState.REACHED else ("due_at",)

    def get_date_column(self, request: HttpRequest) -> str | None:
        return None if is_search(request) else "due_at"

    def build_search(self, request: HttpRequest, text: str) -> Q:
        wanted = parse_uuid(text)
        if wanted is None:
            return Q(pk__in=[])
        called = Q(tenant_id__in=list_tenant_ids(), service_call_id=wanted)
        known = TimerSchedule.across_tenants.filter(called).exists()
        return called if known else Q(correlation_id=wanted)


@admin.register(TimerShard)
class TimerShardAdmin(ReadOnlyAdmin[TimerShard]):
    list_display = ("shard_id", "owner_id", time_column("claimed_at"), time_column("lease_until"), "version")
    fields = (*list_display, time_column("updated_at"), "metadata")
    search_fields = ("=shard_id",)
    ordering = ("shard_id",)


@admin.register(ShardSize)
class ShardSizeAdmin(ReadOnlyAdmin[ShardSize]):
    list_display = ("shard_id", "scheduled", time_column("counted_at"))
    fields = list_display
    search_fields = ("=shard_id",)
    ordering = ("-scheduled", "shard_id")


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin[Node]):
    list_display = (
        "owner_id", "role", "cluster", "hostname", "process_id", "version", "in_flight", time_column("started_at"), time_column("lease_until"),
    )  # fmt: skip
    fields = list_display
    list_filter = ("role", "cluster")
    search_fields = ("hostname",)
    ordering = ("started_at",)
