from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser

from eventservice.client import Client, Json
from eventservice.management.terminal import EXIT_REFUSED, EachCallCommand, Options


class Command(EachCallCommand):
    help = (
        "Replay finished calls: create new calls with the same requests. A call that was already replayed is skipped"
        " unless the replay was canceled or --again is given."
    )
    last_call = "the newest call that is not a replay itself"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--again", action="store_true", help="replay calls again that were already replayed"
        )

    def get_last(self, client: Client) -> Json:
        # A replay is newer than what it replays: a repeated command would replay the replay.
        for call in client.list():
            if call["replayOf"] is None:
                return call
        raise CommandError("There are no calls yet that could be replayed.", returncode=EXIT_REFUSED)

    def run_for_call(
        self, client: Client, service_call_id: str, options: Options
    ) -> tuple[Json, Sequence[object]]:
        call, note = None if options["again"] else _find_replay(client, service_call_id), "as"
        if call is not None:
            note = "before (use --again to replay again), as"
        else:
            call = client.replay(service_call_id)
        return call, (f"replayed {note}", call["serviceCallId"], call["status"], call["name"])


def _find_replay(client: Client, service_call_id: str) -> Json | None:
    for replay in client.list(replayOf=service_call_id):
        if replay["status"] != "Canceled":
            return client.get(replay["serviceCallId"])
    return None
