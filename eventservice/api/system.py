"""The state of the whole system: /api/v1/stats, /shards, /nodes and /dispatch"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.authentication import Scope
from eventservice.api.long_requests import limit_expensive_reads
from eventservice.api.openapi import describe
from eventservice.api.permissions import HasScope, IsAuthenticated, IsOperator
from eventservice.api.schema.queries import PageQuery, StatsQuery, parse_query
from eventservice.api.schema.system import (
    DispatchChangeSchema,
    DispatchSchema,
    NodePageSchema,
    NodeSchema,
    ShardPageSchema,
    ShardSchema,
    StatsSchema,
)
from eventservice.api.views import ApiView
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.operators.dispatch import pause, resume
from eventservice.tenants.directory import get_profile, list_tenant_ids
from orchestration.statistics.recent_sample import read_recent_statistics
from timers.models import TimerShard
from timers.operator_views import list_nodes, list_shards
from timers.pause import find_pause
from timers.shard_sizes import list_shard_sizes

TAG = "operations"


class StatsView(ApiView):
    @describe(
        "getStats",
        TAG,
        "Summarize the calls of the last minutes: throughput, outcomes, lateness and backlog. A tenant sees its own "
        "calls, an operator those of all tenants or of one.",
        query=StatsQuery,
        response=StatsSchema,
    )
    def get(self, request: Request) -> Response:
        query = parse_query(StatsQuery, request.query_params)
        tenant_ids = self._list_visible_tenants(query.tenant_id)
        with limit_expensive_reads():
            found = read_recent_statistics(tenant_ids, timedelta(seconds=query.window))
        return Response(StatsSchema.from_statistics(found))

    def _list_visible_tenants(self, tenant_id: uuid.UUID | None) -> list[uuid.UUID]:
        if not self.principal.is_operator:
            if tenant_id not in (None, self.principal.tenant_id):
                raise NotFound("tenant")
            tenant_id = self.principal.tenant_id
        return list_tenant_ids() if tenant_id is None else [get_profile(tenant_id).tenant_id]


class ShardsView(ApiView):
    permission_classes = [IsAuthenticated, IsOperator, HasScope]
    list_id = "shards"

    @describe(
        "listShards",
        TAG,
        "List the shards with their owners. For operators.",
        query=PageQuery,
        response=ShardPageSchema,
    )
    def get(self, request: Request) -> Response:
        def fetch(after: int | None, limit: int) -> Sequence[TimerShard]:
            return list_shards(-1 if after is None else after, limit)

        now = db_now()
        shards = self.paginator.paginate_rows(fetch, "shard_id", request, self)
        sizes = list_shard_sizes([shard.shard_id for shard in shards])
        return self.get_paginated_response(
            [ShardSchema.from_shard(shard, now, sizes.get(shard.shard_id)) for shard in shards]
        )


class NodesView(ApiView):
    permission_classes = [IsAuthenticated, IsOperator, HasScope]

    @describe(
        "listNodes",
        TAG,
        "List the processes that run an engine or a dispatcher. For operators.",
        response=NodePageSchema,
    )
    def get(self, request: Request) -> Response:
        now = db_now()
        nodes = [NodeSchema.from_node(node, now) for node in list_nodes()]
        return Response(NodePageSchema(items=nodes, next_cursor=None))


class DispatchView(ApiView):
    permission_classes = [IsAuthenticated, IsOperator, HasScope]

    def get_required_scope(self, method: str) -> Scope:
        return Scope.READ if method in SAFE_METHODS else Scope.ADMIN

    @describe("getDispatch", TAG, "Get whether dispatch is paused. For operators.", response=DispatchSchema)
    def get(self, request: Request) -> Response:
        return Response(DispatchSchema.from_pause(find_pause()))

    @describe(
        "changeDispatch",
        TAG,
        "Pause or resume dispatch. While it is paused, calls of all tenants are accepted and nothing is sent. For operators.",
        request=DispatchChangeSchema,
        response=DispatchSchema,
    )
    def patch(self, request: Request) -> Response:
        change = self.parse_body(DispatchChangeSchema)
        if change.paused:
            pause(self.principal, change.reason or "")
        else:
            resume(self.principal)
        return Response(DispatchSchema.from_pause(find_pause()))
