"""Events for a topic exchange of RabbitMQ, which confirms each when the queues that get it have stored it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelPreconditionFailed, DeliveryError
from aiormq.exceptions import PublishError as ReturnedError
from pamqp.commands import Basic

from outbox.envelope import Envelope
from outbox.publisher import PublishError
from outbox.publisher_spec import BrokerUrl, Options, Tls
from outbox.publishers.asyncio_publisher import AsyncioPublisher
from outbox.publishers.rounds import CONTENT_TYPE, Message, escape

DEFAULT_PORT, DEFAULT_TLS_PORT = 5672, 5671
DEFAULT_EXCHANGE = DEFAULT_QUEUE = "eventservice.events"
# The default of `max_message_size` in RabbitMQ 4, and the largest that it can be.
DEFAULT_MAX_EVENT_BYTES, MAX_EVENT_BYTES = 16 * 1024 * 1024, 512 * 1024 * 1024
# By this the server says that a message exceeds its `max_message_size`.
SIZE_ERROR = re.compile(r"larger than (?:the )?(?:configured )?max(?:imum)? size (\d+)")
PERSISTENT = 2

# What goes wrong is raised here, and logged by the dispatcher.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)


def build_publisher(name: str, url: BrokerUrl) -> RabbitMqPublisher:
    """Build the publisher that a URL describes. Raise ValueError if the URL has options or parts that it does not know."""
    options = Options(url)
    is_tls = url.scheme == "amqps"
    publisher = RabbitMqPublisher(
        name,
        host=url.host,
        port=url.port or (DEFAULT_TLS_PORT if is_tls else DEFAULT_PORT),
        virtual_host=url.path.removeprefix("/") or "/",
        username=url.username or "guest",
        password="guest" if url.username is None else url.password or "",
        tls=options.tls() if is_tls else None,
        exchange=options.string("exchange", DEFAULT_EXCHANGE),
        queue=options.string("queue", DEFAULT_QUEUE),
        creates_queue=options.boolean("create", True),
        max_event_bytes=options.integer(
            "max_event_bytes", DEFAULT_MAX_EVENT_BYTES, minimum=1, maximum=MAX_EVENT_BYTES
        ),
        timeout=options.timeout(),
    )
    options.check()
    return publisher


def build_routing_key(event: Envelope) -> str:
    return f"{escape(str(event.tenant_id))}.{escape(event.type)}"


@contextmanager
def _name_permission(permission: str) -> Iterator[None]:
    """Add the permission that an operation needs to a refusal. Older servers name the object only."""
    try:
        yield
    except ChannelAccessRefused as error:
        raise PublishError(f"RabbitMQ: {error}. The user needs the permission {permission}.") from error


class RabbitMqPublisher(AsyncioPublisher):
    """Publishes persistent, mandatory messages: the broker refuses an event that no queue would get."""

    broker = "RabbitMQ"
    errors = (AMQPError, OSError, RuntimeError)
    # Since `connect`.
    _channel: AbstractChannel

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        virtual_host: str,
        username: str,
        password: str,
        tls: Tls | None,
        exchange: str,
        queue: str,
        creates_queue: bool,
        max_event_bytes: int,
        timeout: float,
    ) -> None:
        super().__init__(name, max_event_bytes=max_event_bytes, timeout=timeout)
        # Without heartbeats, which the event loop would miss between batches.
        self._url = (
            f"{'amqps' if tls else 'amqp'}://{quote(username, safe='')}:{quote(password, safe='')}"
            f"@{f'[{host}]' if ':' in host else host}:{port}/{quote(virtual_host, safe='')}"
            "?heartbeat=0&name=eventservice"
        )
        self._tls = tls
        self._exchange = exchange
        self._queue = queue
        self._creates_queue = creates_queue
        self._connection: AbstractConnection | None = None

    async def connect(self) -> None:
        context = self._tls.build_context() if self._tls else None
        self._connection = aiormq.Connection(self._url, context=context)
        await self._connection.connect()
        self._channel = await self._connection.channel(publisher_confirms=True)
        if self._creates_queue:
            with _name_permission("configure on the exchange"):
                await self._channel.exchange_declare(self._exchange, exchange_type="topic", durable=True)
            with _name_permission("configure on the queue"):
                arguments = {"x-queue-type": "quorum"}
                await self._channel.queue_declare(self._queue, durable=True, arguments=arguments)
            with _name_permission("write on the queue and read on the exchange"):
                await self._channel.queue_bind(self._queue, self._exchange, routing_key="#")

    async def send(self, message: Message) -> None:
        event, body = message
        try:
            with _name_permission("write on the exchange"):
                await self._channel.basic_publish(
                    body,
                    exchange=self._exchange,
                    routing_key=build_routing_key(event),
                    mandatory=True,
                    properties=Basic.Properties(
                        content_type=CONTENT_TYPE,
                        delivery_mode=PERSISTENT,
                        message_id=str(event.event_id),
                        message_type=event.type,
                        app_id="eventservice",
                    ),
                )
        except ChannelPreconditionFailed as error:
            if limit := SIZE_ERROR.search(str(error)):
                # The channel has ended. With the next batch the event is too large before it is sent.
                self.max_event_bytes = min(self.max_event_bytes, int(limit[1]))
            raise

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def explain(self, error: Exception) -> str:
        if isinstance(error, ReturnedError):
            return f"no queue is bound to the exchange {self._exchange} for the event"
        if isinstance(error, DeliveryError):
            return "a queue has refused the event"
        return super().explain(error)
