"""Read events from a stream of NATS JetStream, as a durable consumer."""

from __future__ import annotations

import asyncio

import nats
from deduplication import Inbox, parse_arguments
from nats.errors import TimeoutError as NatsTimeoutError


async def main() -> None:
    arguments = parse_arguments("url", "stream")
    inbox = Inbox(arguments.seen)
    client = await nats.connect(arguments.url)
    subscription = await client.jetstream().pull_subscribe("", durable="example", stream=arguments.stream)
    while True:
        try:
            messages = await subscription.fetch(100, timeout=arguments.idle or 60)
        except NatsTimeoutError:
            if arguments.idle:
                break
            continue
        for message in messages:
            inbox.process(message.data)
            await message.ack()
    await client.close()
    inbox.close()


if __name__ == "__main__":
    asyncio.run(main())
