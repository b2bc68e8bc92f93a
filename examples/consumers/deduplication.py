"""What the examples share: their arguments, and the memory of the events that were processed."""

from __future__ import annotations

import argparse
import json
import sqlite3


class Inbox:
    """Processes each event once. Repeats are recognized by `source` and `id`."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS seen (source TEXT, id TEXT, PRIMARY KEY (source, id))"
        )

    def process(self, body: bytes | str) -> None:
        """Process a CloudEvent unless it is a repeat. Acknowledge it to the broker afterwards."""
        event = json.loads(body)
        # One transaction. A real consumer changes its own tables in it, too.
        with self._database:
            added = self._database.execute(
                "INSERT OR IGNORE INTO seen VALUES (?, ?)", (event["source"], event["id"])
            )
            if added.rowcount:
                print(json.dumps(event), flush=True)  # noqa: T201 - this is what the example does

    def close(self) -> None:
        self._database.close()


def parse_arguments(*names: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in names:
        parser.add_argument(name, nargs="?" if name in ("user", "password") else None)
    parser.add_argument("--seen", default="seen.sqlite3", help="the file that remembers events")
    parser.add_argument("--idle", type=float, help="end when no event came for so many seconds")
    return parser.parse_args()
