from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from eventservice.client import Client
from eventservice.management.terminal import ApiCommand


class Command(ApiCommand):
    help = "Make new calls that ask for the same as calls that have ended."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("id", nargs="+")

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        calls = [client.replay(service_call_id) for service_call_id in options["id"]]
        if self.terminal.as_json:
            self.terminal.json(calls)
        else:
            rows = [(call["serviceCallId"], call["name"], call["status"]) for call in calls]
            self.terminal.table(("id", "name", "status"), rows, empty="")
