"""How late calls are, under a steady load over REST, and how soon a call on an idle system goes out."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks import harness
from benchmarks.figures import Report, distribution, say, spread
from benchmarks.harness import BenchmarkError, Sent, Stage, System, Target
from benchmarks.loader import Answered, Job, Load, load, statuses

CONNECTIONS = 8

Measured = dict[str, Any]


def submission(url: str, **more: Any) -> str:
    return json.dumps(
        {"name": "benchmark", "requestSpec": {"method": "POST", "url": url, "body": "y" * 200}, **more}
    )


def job(system: System, tenant: dict[str, str], body: str, count: int, **more: Any) -> Job:
    path = f"/api/v1/tenants/{tenant['id']}/service-calls"
    return Job(
        system.port, path, body, headers={"Authorization": f"Bearer {tenant['key']}"}, count=count, **more
    )


def told(answered: Sequence[Answered]) -> dict[str, tuple[float, float]]:
    """By call: when it was said to be due, and when the client had heard that."""
    refused = [one for one in answered if one.status != 202]
    if refused:
        raise BenchmarkError(f"submissions were refused: {statuses(refused)}; {refused[0].body[:300]}")
    found = {}
    for one in answered:
        call = json.loads(one.body)
        found[call["serviceCallId"]] = datetime.fromisoformat(call["dueAt"]).timestamp(), one.answered
    return found


def lateness_ms(due: dict[str, tuple[float, float]], sent: Sequence[Sent]) -> list[float]:
    """In the order of the due times. The API cuts off a due time's microseconds: up to 1 ms is not the engine's."""
    first: dict[str, float] = {}
    for one in sent:
        first.setdefault(one.call, one.time)
    return [
        (first[call] - at) * 1000
        for call, (at, _) in sorted(due.items(), key=lambda item: item[1])
        if call in first
    ]


def steady(
    system: System, target: Target, tenant: dict[str, str], rate: float, seconds: float, label: str
) -> Measured:
    """Due now, submitted one by one at this rate."""
    count, path = max(1, int(rate * seconds)), f"/ok?{label}"
    work = job(system, tenant, submission(target.url(path)), count, connections=CONNECTIONS, rate=rate)
    with Load(work) as under_way:
        sent = target.collect(path, count, seconds + 60)
        answered = under_way.results(30)
    late = lateness_ms(told(answered), sent)
    answers = [(one.answered - one.sent) * 1000 for one in answered]
    return {
        "lateness_ms": distribution(late, 2),
        "answer_ms": distribution(answers, 2),
        "per_second": round((count - 1) / max(1e-6, answered[-1].sent - answered[0].sent), 1)
        if count > 1
        else None,
        "sent_more_than_once": len(sent) - len({one.call for one in sent}),
    }


def singles(
    system: System, target: Target, tenant: dict[str, str], count: int, pause: float, label: str
) -> Measured:
    """From the client's 202 to the wire. Below zero: the request went out before the client had its answer."""
    after_202, after_submit = [], []
    for number in range(count):
        path = f"/ok?{label}-{number}"
        (answered,) = load(job(system, tenant, submission(target.url(path)), 1, connections=1), 30)
        (sent, *_) = target.collect(path, 1, 30)
        told([answered])
        after_202.append((sent.time - answered.answered) * 1000)
        after_submit.append((sent.time - answered.sent) * 1000)
        time.sleep(pause)
    return {
        "wire_after_202_ms": distribution(after_202, 2),
        "wire_after_submit_ms": distribution(after_submit, 2),
    }


def by_round(rounds: list[Measured], name: str) -> dict[str, Any]:
    """Each percentile's median over the rounds."""
    shares = [share for share in rounds[0][name] if share != "count"]
    return {share: spread([one[name][share] for one in rounds], 2) for share in shares}


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    rounds: list[Measured] = []
    with harness.target(stage) as target, harness.system(stage, stage.database(), [target]) as system:
        tenant = system.agent("tenant", name="lateness")
        say("warming up")
        steady(system, target, tenant, 20, min(2.0, options.seconds), "warm")
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}: {options.rate:g} calls/s for {options.seconds:g} s")
            measured = steady(system, target, tenant, options.rate, options.seconds, f"steady-{number}")
            system.until_quiet()
            say(f"round {number + 1} of {options.rounds}: {options.singles} single calls")
            measured |= singles(system, target, tenant, options.singles, options.pause, f"single-{number}")
            rounds.append(measured)
    names = ("lateness_ms", "answer_ms", "wire_after_202_ms", "wire_after_submit_ms")
    report.figures = {name: by_round(rounds, name) for name in names}
    report.figures["per_second"] = spread([one["per_second"] for one in rounds])
    report.figures["sent_more_than_once"] = sum(one["sent_more_than_once"] for one in rounds)
    report.table(
        f"{options.rate:g} calls/s over REST, and single calls on an idle system: ms, median of the rounds (least–most)",
        ["", "p50", "p95", "p99", "max"],
        [[name.replace("_", " "), *report.figures[name].values()] for name in names],
    )


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("lateness", __doc__, rounds=3)
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--rate", type=float, default=100.0)
    made.add_argument("--singles", type=harness.positive, default=20)
    made.add_argument("--pause", type=float, default=1.0, help="seconds between single calls")
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "lateness", measure)
