"""RabbitMQ, for the contract suites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from tests.contracts.brokers.base import Broker

Result = TypeVar("Result")


class RabbitMqBroker(Broker):
    service = "rabbitmq"
    library = "aiormq"
    missing = "create=false"

    def use(self, action: Callable[[Any], Awaitable[Result]]) -> Result:
        """Return the result of an action with a channel of its own."""
        import aiormq

        async def run() -> Result:
            connection = await aiormq.connect(self.url.geturl())
            try:
                return await action(await connection.channel())
            finally:
                await connection.close()

        return asyncio.run(run())

    def create(self) -> None:
        self.taken: list[Any] = []

    def destroy(self) -> None:
        async def delete(channel: Any) -> None:
            await channel.queue_delete(self.name)
            await channel.exchange_delete(self.name)

        self.use(delete)

    def get_options(self) -> str:
        return f"exchange={self.name}&queue={self.name}"

    def list_messages(self) -> list[Any]:
        """Return the messages that the queue has had, in their order. Those in it are taken out."""
        from aiormq.exceptions import ChannelNotFoundEntity, ConnectionInternalError

        async def take(channel: Any) -> None:
            while (message := await channel.basic_get(self.name, no_ack=True)).delivery_tag is not None:
                self.taken.append(message)

        # The queue does not exist, or is being created.
        with suppress(ChannelNotFoundEntity, ConnectionInternalError):
            self.use(take)
        return self.taken

    def list_accepted(self) -> list[dict[str, Any]]:
        return [json.loads(message.body) for message in self.list_messages()]

    def list_deduplication_ids(self) -> list[str]:
        return [message.header.properties.message_id for message in self.list_messages()]
