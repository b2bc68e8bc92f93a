from __future__ import annotations

from collections.abc import Sequence

from eventservice.client import Client, Json
from eventservice.management.terminal import EachCallCommand, Options


class Command(EachCallCommand):
    help = "Cancel service calls. A running attempt is allowed to finish."

    def run_for_call(
        self, client: Client, service_call_id: str, options: Options
    ) -> tuple[Json, Sequence[object]]:
        call = client.cancel(service_call_id)
        # A key without the scope `read` gets a receipt.
        return call, (call.get("status", "accepted"), call.get("name", service_call_id))
