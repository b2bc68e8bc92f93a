"""Events for a topic of Kafka, by an idempotent producer. Those of an aggregate have one key, and so one partition."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from outbox.envelope import Envelope
from outbox.publisher import PoisonEvent, PublishError
from outbox.publisher_spec import BrokerUrl, Options, Tls
from outbox.publishers.rounds import CONTENT_TYPE, Message, escape, publish_in_rounds

DEFAULT_PORT = 9092
DEFAULT_TOPIC = "eventservice.events"
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Kafka's default of `max.message.bytes`, which includes key and headers, and the largest that the client sends.
DEFAULT_MAX_EVENT_BYTES, MAX_EVENT_BYTES = 1024 * 1024 - 1024, 1_000_000_000
# What key, headers and the frame of a message need, at most.
MAX_OVERHEAD_BYTES = 1024
SIZE_ERRORS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# The longest wait for one report of the client library.
MAX_POLL_SECONDS = 0.05
CLOSE_SECONDS = 5.0
# The client library writes fatal errors of a producer to stderr, whatever its level, unless it has a logger.
SILENT_LOGGER = logging.getLogger("confluent_kafka")
SILENT_LOGGER.setLevel(logging.CRITICAL + 1)
# What a new producer may need besides, for the id by which the server recognizes its repeats.
START_SECONDS = 2.0


def build_publisher(name: str, url: BrokerUrl) -> KafkaPublisher:
    """Build the publisher that a URL describes. Raise ValueError if the URL has options or parts that it does not know."""
    if url.path.strip("/"):
        raise ValueError("the URL of Kafka has no path")
    options = Options(url)
    publisher = KafkaPublisher(
        name,
        host=url.host,
        port=url.port or DEFAULT_PORT,
        username=url.username,
        password=url.password,
        mechanism=options.choice("sasl", SASL_MECHANISMS),
        tls=options.tls() if url.scheme == "kafka+tls" else None,
        topic=options.string("topic", DEFAULT_TOPIC),
        creates_topic=options.boolean("create", True),
        max_event_bytes=options.integer(
            "max_event_bytes",
            DEFAULT_MAX_EVENT_BYTES,
            minimum=1,
            maximum=MAX_EVENT_BYTES - MAX_OVERHEAD_BYTES,
        ),
        timeout=options.timeout(),
    )
    options.check()
    return publisher


def build_key(event: Envelope) -> str:
    return f"{escape(str(event.tenant_id))}/{escape(str(event.aggregate_id))}"


class KafkaPublisher:
    """Publishes with the acknowledgement of all replicas in sync. After a failure the next batch begins a new producer."""

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        username: str | None,
        password: str | None,
        mechanism: str,
        tls: Tls | None,
        topic: str,
        creates_topic: bool,
        max_event_bytes: int,
        timeout: float,
    ) -> None:
        if not TOPIC.fullmatch(topic):
            raise ValueError("the option topic must consist of letters, digits, dots, - and _, at most 249")
        self.name = name
        self._topic = topic
        self._creates_topic = creates_topic
        self._max_event_bytes = max_event_bytes
        self._timeout = timeout
        self._connection_options = {
            "bootstrap.servers": f"{f'[{host}]' if ':' in host else host}:{port}",
            "client.id": "eventservice",
            "security.protocol": f"{'SASL_' if username else ''}{'SSL' if tls else 'PLAINTEXT'}",
            "socket.timeout.ms": int(max(timeout, 0.1) * 1000),
            "socket.connection.setup.timeout.ms": int(max(timeout, 1.0) * 1000),
            "reconnect.backoff.max.ms": 1000,
            # What fails is raised, and logged by the dispatcher.
            "log_level": 0,
            "logger": SILENT_LOGGER,
        }
        if username:
            credentials = {"sasl.username": username, "sasl.password": password or ""}
            self._connection_options |= {"sasl.mechanism": mechanism, **credentials}
        if tls:
            files = {
                "ssl.ca.location": tls.ca,
                "ssl.certificate.location": tls.cert,
                "ssl.key.location": tls.key,
            }
            self._connection_options |= {option: file for option, file in files.items() if file}
        self._producer: Producer | None = None
        self._has_published = False
        # What the client library has reported about its connections since it began them.
        self._last_error: KafkaError | None = None

    def publish(self, events: Sequence[Envelope]) -> None:
        if not events:
            return
        try:
            producer = self._producer or self._begin()
            publish_in_rounds(events, self._max_event_bytes, partial(self._send, producer))
        except PoisonEvent:
            raise
        except KafkaException as error:
            self.close()
            raise self._build_error(error.args[0]) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        producer, self._producer = self._producer, None
        self._has_published = False
        if producer is not None:
            # Nothing may be sent later that has been reported as not accepted.
            producer.purge()
            with suppress(KafkaException):  # a fatal error of this producer, which was reported already
                producer.flush(CLOSE_SECONDS)

    def _begin(self) -> Producer:
        self._last_error = None
        options = {**self._connection_options, "error_cb": self._note_error}
        producer = self._producer = Producer(
            {
                **options,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",  # as the clients in Java
                "linger.ms": 0,
                # `_send` gives up before.
                "message.timeout.ms": int((self._timeout + START_SECONDS) * 1000),
                "message.max.bytes": max(self._max_event_bytes + MAX_OVERHEAD_BYTES, 1_000_000),
                "allow.auto.create.topics": False,
            }
        )
        if not self._has_topic(producer):
            if not self._creates_topic:
                raise PublishError(f"Kafka: the topic {self._topic} does not exist")
            self._create_topic(options)
        return producer

    def _has_topic(self, producer: Producer) -> bool:
        try:
            topic = producer.list_topics(self._topic, self._timeout).topics[self._topic]
        except KafkaException:
            producer.poll(0)  # for the errors that explain why
            raise
        if topic.error is None:
            return True
        if topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaException(topic.error)

    def _create_topic(self, options: dict[str, Any]) -> None:
        """Create the topic with the numbers of partitions and replicas that are the server's defaults."""
        admin = AdminClient(options)  # it must live until the answer
        created = admin.create_topics(
            [NewTopic(self._topic, num_partitions=-1, replication_factor=-1)],
            request_timeout=self._timeout,
            operation_timeout=self._timeout,
        )
        try:
            created[self._topic].result(timeout=2 * self._timeout)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise self._build_permission_error("Create") from error
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _send(self, producer: Producer, messages: Sequence[Message]) -> list[PublishError | None]:
        results = self._send_together(producer, messages)
        if len(messages) > 1:
            # The server's limit is one of what the client has put together, so the event itself may be smaller.
            for number, result in enumerate(results):
                if isinstance(result, PoisonEvent):
                    (results[number],) = self._send_together(producer, [messages[number]])
        return results

    def _send_together(self, producer: Producer, messages: Sequence[Message]) -> list[PublishError | None]:
        errors: dict[int, KafkaError | None] = {}

        def note_delivery(number: int, error: KafkaError | None, _message: object) -> None:
            errors[number] = error

        for number, (event, body) in enumerate(messages):
            try:
                producer.produce(
                    self._topic,
                    body,
                    build_key(event),
                    on_delivery=partial(note_delivery, number),
                    headers={
                        "content-type": CONTENT_TYPE,
                        "id": str(event.event_id),
                        "source": event.source,
                        "type": event.type,
                    },
                )
            except KafkaException as error:
                producer.poll(0)  # for the errors that explain why
                errors[number] = error.args[0]
        end = time.monotonic() + self._timeout + (0.0 if self._has_published else START_SECONDS)
        while len(errors) < len(messages) and time.monotonic() < end:
            producer.poll(MAX_POLL_SECONDS)
        self._has_published = self._has_published or any(error is None for error in errors.values())
        late = KafkaError(KafkaError._MSG_TIMED_OUT)
        results = [errors.get(number, late) for number in range(len(messages))]
        return [None if error is None else self._build_error(error) for error in results]

    def _note_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error

    def _build_error(self, error: KafkaError) -> PublishError:
        cause = self._last_error
        codes = {error.code(), cause and cause.code()}
        if error.code() in SIZE_ERRORS:
            return PoisonEvent(f"the event is larger than max.message.bytes of the topic {self._topic}")
        if KafkaError.TOPIC_AUTHORIZATION_FAILED in codes:
            return self._build_permission_error("Write")
        if KafkaError.CLUSTER_AUTHORIZATION_FAILED in codes:
            # The server gives this producer no id, by which it would recognize repeats.
            return self._build_permission_error(
                "Write", ", and before Kafka 2.8 IdempotentWrite on the cluster"
            )
        if error.code() == KafkaError._MSG_TIMED_OUT:
            reason = f"no answer within {self._timeout:g} s"
        else:
            reason = error.str()
        return PublishError(f"Kafka: {'; '.join(filter(None, (reason, cause and cause.str())))}")

    def _build_permission_error(self, operation: str, more: str = "") -> PublishError:
        return PublishError(
            f"Kafka: the user needs the permission {operation} on the topic {self._topic}{more}"
        )
