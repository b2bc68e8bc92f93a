"""Events for a Redis stream, in which each is an entry with the fields `id`, `source`, `type` and `event`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox.envelope import Envelope
from outbox.publisher import PublishError
from outbox.publisher_spec import BrokerUrl, Options, Tls
from outbox.publishers.rounds import build_size_error

DEFAULT_PORT = 6379
DEFAULT_STREAM = "eventservice:events"
# The largest string that Redis stores unless `proto-max-bulk-len` says otherwise.
MAX_STRING_BYTES = 512 * 1024 * 1024
# One call of the script blocks the server while it runs.
MAX_BATCH_EVENTS, MAX_BATCH_BYTES = 500, 1024 * 1024

# Appends entries until the first that is refused, and returns how many were appended, with the reason for the refusal.
# Commands in a pipeline would go on behind a refused one, so that an event could overtake an earlier one of its call.
APPEND = """
local options = {}
if ARGV[1] == '0' then table.insert(options, 'NOMKSTREAM') end
if ARGV[2] ~= '0' then
    table.insert(options, 'MAXLEN')
    table.insert(options, '~')
    table.insert(options, ARGV[2])
end
table.insert(options, '*')
local arguments = {unpack(options)}
local accepted = 0
for position = 3, #ARGV, 4 do
    for field, name in ipairs({'id', 'source', 'type', 'event'}) do
        arguments[#options + 2 * field - 1] = name
        arguments[#options + 2 * field] = ARGV[position + field - 1]
    end
    local reply = redis.pcall('XADD', KEYS[1], unpack(arguments))
    if not reply then return {accepted, 'the stream does not exist'} end
    if type(reply) == 'table' and reply.err then return {accepted, reply.err} end
    accepted = accepted + 1
end
return {accepted, ''}
"""

Entry = tuple[str, str, str, bytes]


def build_publisher(name: str, url: BrokerUrl) -> RedisPublisher:
    """Build the publisher that a URL describes. Raise ValueError if the URL has options or parts that it does not know."""
    database = url.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise ValueError("the path must be the number of a database")
    options = Options(url)
    publisher = RedisPublisher(
        name,
        host=url.host,
        port=url.port or DEFAULT_PORT,
        database=int(database),
        username=url.username,
        password=url.password,
        tls=options.tls() if url.scheme == "rediss" else None,
        stream=options.string("stream", DEFAULT_STREAM),
        max_length=options.integer("maxlen", 0, minimum=0, maximum=10**12),
        creates_stream=options.boolean("create", True),
        max_event_bytes=options.integer(
            "max_event_bytes", MAX_STRING_BYTES, minimum=1, maximum=MAX_STRING_BYTES
        ),
        timeout=options.timeout(),
    )
    options.check()
    return publisher


class RedisPublisher:
    """Appends each event to the stream. A batch has a time limit; after a failure the next one begins a new connection."""

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        database: int,
        username: str | None,
        password: str | None,
        tls: Tls | None,
        stream: str,
        max_length: int,
        creates_stream: bool,
        max_event_bytes: int,
        timeout: float,
    ) -> None:
        self.name = name
        self._stream = stream
        self._options = ["1" if creates_stream else "0", str(max_length)]
        self._max_event_bytes = max_event_bytes
        self._client_options = {
            "host": host,
            "port": port,
            "db": database,
            "username": username,
            "password": password,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            # The dispatcher tries again: by itself, the client would append a batch twice whose answer is late.
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if tls:
            files = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
            self._client_options |= {"ssl": True, **files}
        self._client: redis.Redis | None = None

    def publish(self, events: Sequence[Envelope]) -> None:
        accepted = 0
        for batch in self._build_batches(events):
            accepted += self._append(batch, accepted)
        if accepted < len(events):
            raise build_size_error(self._max_event_bytes, accepted)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(redis.RedisError, OSError):
                client.close()

    def _build_batches(self, events: Sequence[Envelope]) -> Iterator[list[Entry]]:
        """Yield the events that come before the first that is too large, in batches for one call of the script each."""
        batch: list[Entry] = []
        size = 0
        for event in events:
            body = event.to_json().encode()
            if len(body) > self._max_event_bytes:
                break
            if batch and (len(batch) == MAX_BATCH_EVENTS or size + len(body) > MAX_BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((str(event.event_id), event.source, event.type, body))
            size += len(body)
        if batch:
            yield batch

    def _append(self, batch: list[Entry], accepted_before: int) -> int:
        """Append a batch, and return how many events that was. Raise PublishError unless it was all of them."""
        arguments = [*self._options, *(value for entry in batch for value in entry)]
        try:
            if self._client is None:
                self._client = redis.Redis(**self._client_options)
            accepted, reason = self._client.eval(APPEND, 1, self._stream, *arguments)
        except (redis.RedisError, OSError) as error:
            self.close()
            raise PublishError(f"Redis: {error}", accepted=accepted_before) from error
        if accepted < len(batch):
            self.close()
            reason = reason.decode(errors="replace")
            raise PublishError(f"Redis, stream {self._stream}: {reason}", accepted=accepted_before + accepted)
        return len(batch)
