"""What an operator should look at now, with where to look: most urgent first."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from eventservice.console.charts import Link, format_share
from eventservice.templatetags.console import capped, duration
from orchestration.statistics.charts import failing_hosts
from orchestration.statistics.live import Pulse
from outbox.status import OutboxStatus
from timers.models import NodeRole
from timers.operator_views import list_stuck_shards

# A host is failing when of the last quarter of an hour's calls to it so many failed, and this share.
FAILING_WITHIN = timedelta(minutes=15)
LEAST_FAILED = 3
FAILED_SHARE = 0.25
MOST_HOSTS = 5
# What is due is taken within milliseconds; what is overdue for so long tells of trouble.
TOLERABLE = timedelta(seconds=10)
MOST_NAMED = 5

WITHOUT = {
    NodeRole.ENGINE: "Nothing that is due is called.",
    NodeRole.DISPATCHER: "Events wait in the outbox, and no webhook is sent.",
}


@dataclass(frozen=True, slots=True)
class Item:
    level: str  # alarm, worry
    text: str
    detail: str
    href: str
    action: str
    command: str = ""


def attention(
    tenant_id: uuid.UUID | None,
    now: datetime,
    found: Pulse,
    outbox: OutboxStatus,
    live: dict[str, int],
    link: Link,
) -> list[Item]:
    return [
        *_missing_roles(live),
        *_stuck_shards(now),
        *_failing_hosts(tenant_id, now, link),
        *_lost_calls(found, link),
        *_parked_events(outbox),
    ]


def _missing_roles(live: dict[str, int]) -> Iterator[Item]:
    for role, consequence in WITHOUT.items():
        if not live.get(role.value):
            yield Item(
                "alarm", f"No live {role.value}", consequence,
                reverse("console:timers"), "Nodes", "manage.py cluster",
            )  # fmt: skip


def _stuck_shards(now: datetime) -> Iterator[Item]:
    stuck = list_stuck_shards(now - TOLERABLE, now)
    if stuck:
        named = ", ".join(str(shard.shard_id) for shard in stuck[:MOST_NAMED])
        more = f" and {len(stuck) - MOST_NAMED} more" if len(stuck) > MOST_NAMED else ""
        oldest = duration(now - stuck[0].first_due)
        yield Item(
            "alarm", _count(len(stuck), "stuck shard"),
            f"Nobody owns {_them(stuck)}, and timers are overdue for up to {oldest}: shard {named}{more}.",
            reverse("console:timers"), "Shards",
        )  # fmt: skip


def _them(several: Sequence[Any]) -> str:
    return "it" if len(several) == 1 else "them"


def _failing_hosts(tenant_id: uuid.UUID | None, now: datetime, link: Link) -> Iterator[Item]:
    since = now - FAILING_WITHIN
    hosts = failing_hosts(
        tenant_id, since, now, least=LEAST_FAILED, share=FAILED_SHARE, most=MOST_HOSTS
    )  # fmt: skip
    for one in hosts:
        ended = one.outcomes.succeeded + one.outcomes.failed
        share = format_share(one.outcomes.failed / ended)
        yield Item(
            "worry" if one.outcomes.succeeded else "alarm",
            f"{one.host or 'A host without a name'} is failing",
            f"{one.outcomes.failed:,} of {ended:,} calls failed in the last 15 minutes ({share}).",
            link(tenant=str(one.tenant_id), host=one.host, status="Failed", **{"from": since}),
            "Failed calls",
        )


def _lost_calls(found: Pulse, link: Link) -> Iterator[Item]:
    if found.lost_count:
        first = found.lost[0]
        count = capped(found.lost_count)
        yield Item(
            "worry", f"{count} running {'call' if count == '1' else 'calls'} past the deadline",
            "The attempt should have been recorded by now. An engine takes such calls up again by itself.",
            reverse("console:call", args=[first.tenant_id, first.service_call_id])
            if found.lost_count == 1 else link(status="Running"),
            first.name if found.lost_count == 1 else "Running calls",
        )  # fmt: skip


def _parked_events(outbox: OutboxStatus) -> Iterator[Item]:
    if outbox.parked:
        behind = (
            f", and {outbox.waiting_behind_parked:,} wait behind them" if outbox.waiting_behind_parked else ""
        )
        yield Item(
            "worry", _count(outbox.parked, "parked event"),
            f"No publisher would have {'it' if outbox.parked == 1 else 'them'}{behind}. Try again, or skip.",
            reverse("console:outbox"), "Outbox",
        )  # fmt: skip


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
