from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandParser

from eventservice.client import Client
from eventservice.management.terminal import EachCallCommand


class Command(EachCallCommand):
    help = (
        "Make new calls that ask for the same as calls that have ended. What has been replayed before, by a call"
        " that nobody canceled, is not replayed once more without --again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--again", action="store_true", help="also what has been replayed before")

    def act_on(
        self, client: Client, service_call_id: str, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        call, made = None if options["again"] else _replay_of(client, service_call_id), "as"
        if call is not None:
            made = "before (--again makes another), as"
        else:
            call = client.replay(service_call_id)
        return call, (f"replayed {made}", call["serviceCallId"], call["status"], call["name"])


def _replay_of(client: Client, service_call_id: str) -> dict[str, Any] | None:
    for replay in client.list(replayOf=service_call_id):
        if replay["status"] != "Canceled":
            return client.get(replay["serviceCallId"])
    return None
