"""Read events from a queue of RabbitMQ."""

from __future__ import annotations

import asyncio
from typing import Any

import aiormq
from deduplication import Inbox, parse_arguments


async def main() -> None:
    arguments = parse_arguments("url", "queue")
    inbox = Inbox(arguments.seen)
    connection = await aiormq.connect(arguments.url)
    channel = await connection.channel()
    await channel.basic_qos(prefetch_count=100)
    messages: asyncio.Queue[Any] = asyncio.Queue()
    # One loop processes what arrives, so that events of a call stay in their order.
    await channel.basic_consume(arguments.queue, messages.put)
    while True:
        try:
            message = await asyncio.wait_for(messages.get(), arguments.idle)
        except TimeoutError:
            break
        inbox.process(message.body)
        await channel.basic_ack(message.delivery_tag)
    await connection.close()
    inbox.close()


if __name__ == "__main__":
    asyncio.run(main())
