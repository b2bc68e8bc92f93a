"""NATS JetStream, for the contract suites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from tests.contracts.brokers.base import Broker

Result = TypeVar("Result")


class NatsBroker(Broker):
    service = "nats"
    library = "nats"
    missing = "create=false"

    def use(self, action: Callable[[Any], Awaitable[Result]]) -> Result:
        """Return the result of an action with the API of JetStream."""
        import nats

        async def run() -> Result:
            client = await nats.connect(self.url.geturl())
            try:
                return await action(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())

    def destroy(self) -> None:
        from nats.js.errors import NotFoundError

        async def delete(jetstream: Any) -> None:
            with suppress(NotFoundError):
                await jetstream.delete_stream(self.name)

        self.use(delete)

    def get_options(self) -> str:
        return f"stream={self.name}&subject={self.name}"

    def list_messages(self) -> list[Any]:
        """Return the messages in the stream."""
        from nats.js.errors import NotFoundError

        async def read(jetstream: Any) -> list[Any]:
            try:
                state = (await jetstream.stream_info(self.name)).state
            except NotFoundError:
                return []
            numbers = range(state.first_seq, state.last_seq + 1)
            return [await jetstream.get_msg(self.name, number) for number in numbers]

        return self.use(read)

    def list_accepted(self) -> list[dict[str, Any]]:
        return [json.loads(message.data) for message in self.list_messages()]

    def list_deduplication_ids(self) -> list[str]:
        return [message.headers["Nats-Msg-Id"] for message in self.list_messages()]
