from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eventservice.client import Client
from eventservice.management.terminal import EachCallCommand


class Command(EachCallCommand):
    help = "Cancel service calls. A running attempt is allowed to finish."

    def run_for_call(
        self, client: Client, service_call_id: str, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        call = client.cancel(service_call_id)
        return call, (call["status"], call["name"])
