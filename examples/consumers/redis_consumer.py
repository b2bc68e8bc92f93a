"""Read events from a Redis stream, as a member of a consumer group."""

from __future__ import annotations

import redis
from deduplication import Inbox, parse_arguments

GROUP, CONSUMER = "example", "one"


def main() -> None:
    arguments = parse_arguments("url", "stream")
    inbox = Inbox(arguments.seen)
    client = redis.Redis.from_url(arguments.url)
    try:
        client.xgroup_create(arguments.stream, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    # First what this consumer had received but not acknowledged before it was restarted, then what is new.
    position = "0"
    while True:
        block = int(arguments.idle * 1000) if arguments.idle else 0
        found = client.xreadgroup(GROUP, CONSUMER, {arguments.stream: position}, count=100, block=block)
        entries = found[0][1] if found else []
        for number, fields in entries:
            inbox.process(fields[b"event"])
            client.xack(arguments.stream, GROUP, number)
        if position == "0":
            position = ">" if not entries else "0"
        elif not entries:
            break
    client.close()
    inbox.close()


if __name__ == "__main__":
    main()
