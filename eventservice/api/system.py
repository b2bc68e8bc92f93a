"""For operators: what has become of the calls, who owns the shards, which nodes live."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api import serializers as shapes
from eventservice.api.fields import raise_if_invalid
from eventservice.api.formats import format_instant
from eventservice.api.openapi import PAGING, described, parameter
from eventservice.api.pagination import Query, listed, make_cursor
from eventservice.api.problems import FieldError
from eventservice.api.views import ApiView, reply
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.tenants.directory import get_profile, list_tenant_ids
from orchestration.statistics.recent_sample import RecentStatistics, read_recent_statistics
from timers.operator_views import list_nodes, list_shards

DEFAULT_WINDOW = 900.0
LONGEST_WINDOW = 86_400.0
STATS = [
    parameter("tenantId", {"type": "string", "format": "uuid"}),
    parameter("window", {"type": "string"}, "Such as `15m`, longer than `0s`; at most a day."),
]


class StatsView(ApiView):
    """A tenant sees its own; an operator those of all tenants, or of one."""

    @described(
        "getStats",
        "operations",
        gives=shapes.StatsSerializer,
        parameters=STATS,
        about="What has become of the calls of a window.",
    )
    def get(self, request: Request) -> HttpResponse:
        faults: list[FieldError] = []
        query = Query(request._request.GET, faults)
        tenant_id = query.identifier("tenantId")
        window = query.duration("window", most=LONGEST_WINDOW)
        if window == 0:
            query.fault("window", "must be longer than 0s")
        query.no_others()
        raise_if_invalid(faults)
        return reply(
            show_statistics(
                read_recent_statistics(self._tenants(tenant_id), timedelta(seconds=window or DEFAULT_WINDOW))
            )
        )

    def _tenants(self, asked: uuid.UUID | None) -> list[uuid.UUID]:
        if not self.principal.is_operator:
            if asked not in (None, self.principal.tenant_id):
                raise NotFound("tenant")
            asked = self.principal.tenant_id
        if asked is None:
            return list_tenant_ids()
        self._enter(asked)
        return [get_profile(asked).tenant_id]


def show_statistics(found: RecentStatistics) -> dict[str, Any]:
    return {
        "windowSeconds": found.window.total_seconds(),
        "throughput": {"perSecond": round(found.per_second, 3), "ended": sum(found.ended.values())},
        "outcomes": {"byStatus": dict(found.ended), "byErrorKind": dict(found.error_kinds)},
        "latenessMs": {
            "p50": found.lateness(0.5),
            "p95": found.lateness(0.95),
            "p99": found.lateness(0.99),
            "sampled": len(found.lateness_ms),
        },
        "running": found.running,
        "backlog": dict(found.backlog),
        "oldestOverdueSeconds": found.oldest_overdue.total_seconds(),
    }


class ShardsView(ApiView):
    for_operators = True

    @described(
        "listShards",
        "operations",
        gives=shapes.ShardPage,
        parameters=PAGING,
        about="Shards and their owners. For operators.",
    )
    def get(self, request: Request) -> HttpResponse:
        faults: list[FieldError] = []
        query = Query(request._request.GET, faults)
        limit, position = query.limit(), query.cursor("shards")
        query.no_others()
        raise_if_invalid(faults)
        now = db_now()
        rows = list_shards(position[0] if position else -1, limit + 1)
        cursor = make_cursor("shards", [rows[limit - 1].shard_id]) if len(rows) > limit else None
        return reply(listed([_show_shard(row, now) for row in rows[:limit]], cursor))


class NodesView(ApiView):
    for_operators = True

    @described(
        "listNodes", "operations", gives=shapes.NodePage, about="The processes at work. For operators."
    )
    def get(self, request: Request) -> HttpResponse:
        faults: list[FieldError] = []
        query = Query(request._request.GET, faults)
        query.no_others()
        raise_if_invalid(faults)
        now = db_now()
        return reply(listed([_show_node(node, now) for node in list_nodes()], None))


def _show_shard(shard: Any, now: Any) -> dict[str, Any]:
    return {
        "shardId": shard.shard_id,
        "version": shard.version,
        "ownerId": shard.owner_id and str(shard.owner_id),
        "claimedAt": format_instant(shard.claimed_at),
        "leaseUntil": format_instant(shard.lease_until),
        "owned": shard.owner_id is not None and shard.lease_until > now,
        "metadata": shard.metadata,
    }


def _show_node(node: Any, now: Any) -> dict[str, Any]:
    return {
        "nodeId": str(node.owner_id),
        "role": node.role,
        "hostname": node.hostname,
        "processId": node.process_id,
        "startedAt": format_instant(node.started_at),
        "leaseUntil": format_instant(node.lease_until),
        "live": node.is_alive(now),
        "inFlight": node.in_flight,
    }
