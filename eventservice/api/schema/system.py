"""The state of the whole system, for operators: statistics, shards and nodes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from eventservice.api.schema.base import Page, RequestModel, ResponseModel, omittable
from eventservice.api.schema.types import OneLine, UtcTime
from orchestration.statistics.recent_sample import RecentStatistics
from timers.models import DispatchPause, Node, TimerShard
from timers.pause import MAX_REASON_LENGTH


class ThroughputSchema(ResponseModel):
    per_second: float
    ended: int


class OutcomesSchema(ResponseModel):
    by_status: dict[str, int]
    by_error_kind: dict[str, int] = Field(description="Of a sample of the failed calls.")


class LatenessSchema(ResponseModel):
    """How long after their due time calls were started, in milliseconds."""

    p50: float | None
    p95: float | None
    p99: float | None
    sampled: int = Field(description="The number of calls that were measured.")


class StatsSchema(ResponseModel):
    window_seconds: float
    throughput: ThroughputSchema
    outcomes: OutcomesSchema
    lateness_ms: LatenessSchema
    running: int
    retrying: int = Field(description="Scheduled calls that wait for another attempt.")
    backlog: dict[str, int] = Field(description="Scheduled calls by when they are due.")
    oldest_overdue_seconds: float

    @classmethod
    def from_statistics(cls, found: RecentStatistics) -> StatsSchema:
        return cls(
            window_seconds=found.window.total_seconds(),
            throughput=ThroughputSchema(
                per_second=round(found.per_second, 3), ended=sum(found.ended.values())
            ),
            outcomes=OutcomesSchema(by_status=dict(found.ended), by_error_kind=dict(found.error_kinds)),
            lateness_ms=LatenessSchema(
                p50=found.lateness(0.5),
                p95=found.lateness(0.95),
                p99=found.lateness(0.99),
                sampled=len(found.lateness_ms),
            ),
            running=found.running,
            retrying=found.retrying,
            backlog=dict(found.backlog),
            oldest_overdue_seconds=found.oldest_overdue.total_seconds(),
        )


class ShardSchema(ResponseModel):
    shard_id: int
    version: int = Field(description="Increases with each change of owner: the fence of its lease.")
    owner_id: uuid.UUID | None
    claimed_at: UtcTime | None
    lease_until: UtcTime | None
    updated_at: UtcTime | None = Field(description="When the lease was last claimed, renewed or released.")
    owned: bool = Field(description="Whether the lease of the owner is valid now.")
    metadata: dict[str, Any] = Field(
        description="The last owner: `nodeId`, `hostname`, `processId`, and `serviceVersion`, a hash of its code."
    )
    scheduled_timers: int | None = Field(
        description="How many timers waited in the shard when they were counted, about every minute."
    )

    @classmethod
    def from_shard(cls, shard: TimerShard, now: datetime, scheduled_timers: int | None) -> ShardSchema:
        return cls(
            shard_id=shard.shard_id,
            version=shard.version,
            owner_id=shard.owner_id,
            claimed_at=shard.claimed_at,
            lease_until=shard.lease_until,
            updated_at=shard.updated_at,
            owned=shard.owner_id is not None and shard.lease_until is not None and shard.lease_until > now,
            metadata=shard.metadata,
            scheduled_timers=scheduled_timers,
        )


class NodeSchema(ResponseModel):
    node_id: uuid.UUID
    role: str
    hostname: str
    process_id: int
    service_version: str = Field(description="A hash of the code that the process runs.")
    started_at: UtcTime
    lease_until: UtcTime
    live: bool = Field(description="Whether the lease of the node is valid now.")
    in_flight: int = Field(description="Requests under way.")

    @classmethod
    def from_node(cls, node: Node, now: datetime) -> NodeSchema:
        return cls(
            node_id=node.owner_id,
            role=node.role,
            hostname=node.hostname,
            process_id=node.process_id,
            service_version=node.version,
            started_at=node.started_at,
            lease_until=node.lease_until,
            live=node.is_alive(now),
            in_flight=node.in_flight,
        )


class ShardPageSchema(Page[ShardSchema]):
    pass


class NodePageSchema(Page[NodeSchema]):
    pass


class DispatchSchema(ResponseModel):
    paused: bool = Field(description="Whether nothing is sent: no calls, no webhooks, nothing to brokers.")
    since: UtcTime | None
    paused_by: str | None = Field(description="The user, as in the audit log.")
    reason: str | None

    @classmethod
    def from_pause(cls, pause: DispatchPause | None) -> DispatchSchema:
        if pause is None:
            return cls(paused=False, since=None, paused_by=None, reason=None)
        return cls(paused=True, since=pause.since, paused_by=pause.paused_by, reason=pause.reason)


class DispatchChangeSchema(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"paused": True, "reason": "Maintenance"}, {"paused": False}]}
    )

    paused: bool
    reason: Annotated[OneLine, Field(max_length=MAX_REASON_LENGTH)] = omittable(
        description="Why dispatch is paused, for operators. The reason of a pause that exists is kept."
    )
