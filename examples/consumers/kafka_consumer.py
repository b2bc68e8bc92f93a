"""Read events from a topic of Kafka, as a member of a consumer group."""

from __future__ import annotations

import math
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition
from deduplication import Inbox, parse_arguments


def main() -> None:
    arguments = parse_arguments("server", "topic", "user", "password")
    inbox = Inbox(arguments.seen)
    options = {
        "bootstrap.servers": arguments.server,
        "group.id": f"example-{arguments.topic}",
        "auto.offset.reset": "earliest",
        # An event counts as read when it has been processed.
        "enable.auto.commit": False,
    }
    if arguments.user:
        options |= {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": arguments.user,
            "sasl.password": arguments.password,
        }
    consumer = Consumer(options)
    # Joining the group takes seconds, in which no event can come.
    last = math.inf

    def note_assignment(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        nonlocal last
        last = time.monotonic()

    consumer.subscribe([arguments.topic], on_assign=note_assignment)
    while not arguments.idle or time.monotonic() - last < arguments.idle:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        inbox.process(message.value())
        consumer.commit(message, asynchronous=False)
        last = time.monotonic()
    consumer.close()
    inbox.close()


if __name__ == "__main__":
    main()
