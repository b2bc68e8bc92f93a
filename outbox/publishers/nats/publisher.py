"""Events for a stream of NATS JetStream, which acknowledges each when it has stored it, and recognizes repeats."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import Error, MaxPayloadError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from outbox.envelope import Envelope
from outbox.publisher import PoisonEvent
from outbox.publisher_spec import BrokerUrl, Options, Tls
from outbox.publishers.asyncio_publisher import AsyncioPublisher
from outbox.publishers.rounds import CONTENT_TYPE, Message, escape

DEFAULT_PORT = 4222
DEFAULT_STREAM = DEFAULT_SUBJECT = "eventservice"
SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
STREAM = re.compile(r"[A-Za-z0-9_-]+")
# The largest `max_payload` of a server.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
# `max_payload` includes the headers of a message, which are shorter than this.
MAX_HEADER_BYTES = 512
# The `err_code` of JetStream for a message that is larger than `max_msg_size` of the stream.
MESSAGE_TOO_LARGE = 10054


def build_publisher(name: str, url: BrokerUrl) -> NatsPublisher:
    """Build the publisher that a URL describes. Raise ValueError if the URL has options or parts that it does not know."""
    if url.path.strip("/"):
        raise ValueError("the URL of NATS has no path")
    options = Options(url)
    publisher = NatsPublisher(
        name,
        host=url.host,
        port=url.port or DEFAULT_PORT,
        username=url.username,
        password=url.password,
        tls=options.tls() if url.scheme == "nats+tls" else None,
        stream=options.string("stream", DEFAULT_STREAM),
        subject=options.string("subject", DEFAULT_SUBJECT),
        creates_stream=options.boolean("create", True),
        max_event_bytes=options.integer(
            "max_event_bytes", MAX_PAYLOAD_BYTES, minimum=1, maximum=MAX_PAYLOAD_BYTES
        ),
        timeout=options.timeout(),
    )
    options.check()
    return publisher


class NatsPublisher(AsyncioPublisher):
    """Publishes to the subject `<subject>.<tenant>.<type>`, which belongs to the stream."""

    broker = "NATS"
    errors = (Error, OSError)
    # Since `connect`.
    _jetstream: JetStreamContext

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        username: str | None,
        password: str | None,
        tls: Tls | None,
        stream: str,
        subject: str,
        creates_stream: bool,
        max_event_bytes: int,
        timeout: float,
    ) -> None:
        if not STREAM.fullmatch(stream):
            raise ValueError("the option stream must consist of letters, digits, - and _")
        if not SUBJECT.fullmatch(subject):
            raise ValueError(
                "the option subject must consist of words of letters, digits, - and _, separated by dots"
            )
        super().__init__(name, max_event_bytes=max_event_bytes, timeout=timeout)
        self._server = f"nats://{f'[{host}]' if ':' in host else host}:{port}"
        self._host = host
        self._username = username
        self._password = password
        self._tls = tls
        self._stream = stream
        self._subject = subject
        self._creates_stream = creates_stream
        self._chosen_max_bytes = max_event_bytes
        self._client: Client | None = None

    async def connect(self) -> None:
        self._client = Client()
        is_connecting = True

        async def raise_error(error: Exception) -> None:
            # By itself the client library would try again. Later errors are raised where they matter.
            if is_connecting:
                raise error

        context = self._tls.build_context() if self._tls else None
        await self._client.connect(
            servers=[self._server],
            name="eventservice",
            connect_timeout=self.timeout,
            allow_reconnect=False,
            error_cb=raise_error,
            tls=context,
            tls_hostname=self._host if context else None,
            **self._build_credentials(context),
        )
        is_connecting = False
        _check_encryption(context)
        self.max_event_bytes = min(self._chosen_max_bytes, self._client.max_payload - MAX_HEADER_BYTES)
        self._jetstream = self._client.jetstream(timeout=self.timeout)
        if self._creates_stream:
            await self._create_stream(self._jetstream)

    async def send(self, message: Message) -> None:
        event, body = message
        headers = {"Nats-Msg-Id": str(event.event_id), "Content-Type": CONTENT_TYPE}
        try:
            await self._jetstream.publish(self._build_subject(event), body, self.timeout, headers=headers)
        except MaxPayloadError as error:
            raise PoisonEvent("the event is larger than max_payload of the server") from error
        except APIError as error:
            if error.err_code == MESSAGE_TOO_LARGE:
                raise PoisonEvent("the event is larger than max_msg_size of the stream") from error
            raise

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def explain(self, error: Exception) -> str:
        if isinstance(error, NoStreamResponseError):
            return f"no stream has the subjects {self._subject}.>"
        if isinstance(error, APIError):
            return f"stream {self._stream}: {error.description} ({error.err_code})"
        return super().explain(error)

    def _build_subject(self, event: Envelope) -> str:
        return f"{self._subject}.{escape(str(event.tenant_id))}.{escape(event.type)}"

    def _build_credentials(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        if self._username is None:
            return {}
        if self._password is None:
            return {"token": _build_secret(self._username, context)}
        return {"user": self._username, "password": _build_secret(self._password, context)}

    async def _create_stream(self, jetstream: JetStreamContext) -> None:
        try:
            await jetstream.stream_info(self._stream)
        except NotFoundError:
            await jetstream.add_stream(name=self._stream, subjects=[f"{self._subject}.>"])


def _build_secret(secret: str, context: ssl.SSLContext | None) -> Callable[[], str]:
    """Return what the client library calls when it sends the credentials."""

    def get_secret() -> str:
        _check_encryption(context)
        return secret

    return get_secret


def _check_encryption(context: ssl.SSLContext | None) -> None:
    """Raise an error if TLS was asked for, and the server does without: the client library would accept that."""
    if context is not None and not context.session_stats()["connect_good"]:
        raise Error("the server does not use TLS")
