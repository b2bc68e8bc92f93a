"""Requests to DynamoDB, each with limits of time.

A write is repeated only if DynamoDB says that it has done nothing. Its condition would not be met the second time, and a
process would take its own write for another's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, NamedTuple, TypeVar

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from eventservice.kernel.backoff import full_jitter
from timers.stores.dynamodb.address import DynamoDbAddress
from timers.stores.dynamodb.items import Item
from timers.stores.port import OutcomeUnknown, StoreUnavailable, TimerStoreError, TimerTooLarge

T = TypeVar("T")
Response = Mapping[str, Any]

CONNECT_SECONDS, ANSWER_SECONDS = 2, 6
# How long a request that was refused, and could succeed later, is repeated.
REPEAT_SECONDS, FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 4.0, 0.05, 1.0
MAX_PARALLEL_REQUESTS = 8

THROTTLED = {
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
}
# The item is not in the state that a write names, or the table that is to be created exists.
CONDITION_FAILED = {"ConditionalCheckFailedException", "ResourceInUseException"}
NO_TABLE = "ResourceNotFoundException"
# Raised before the request is sent, and by a connection that breaks afterwards.
NOT_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
LOST = (HTTPClientError, SSLError, IncompleteReadError, ChecksumError, ResponseParserError)
# The header has whole seconds, so its time is between none and one second ago.
DATE_HEADER_DELAY = timedelta(milliseconds=500)


class ConditionFailed(Exception):
    """The item is not in the state that a write names. Nothing was written."""


class NoTable(StoreUnavailable):
    """There is no table of this name."""


class _Connection(NamedTuple):
    client: Any
    executor: ThreadPoolExecutor


class _Answer(NamedTuple):
    """When the server has answered: by its clock, and by the monotonic one of this process."""

    date: datetime
    received_at: float


class DynamoDbClient:
    """Sends requests. It connects when it is first used, because the client and its threads do not survive a fork."""

    def __init__(self, name: str, address: DynamoDbAddress) -> None:
        self._name = name
        self._address = address
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._latest_answer: _Answer | None = None

    def read(self, operation: str, **parameters: object) -> Response:
        return self._send(operation, parameters, StoreUnavailable)

    def write(self, operation: str, **parameters: object) -> Response:
        """Send a write. Raise ConditionFailed if its condition is not met, and OutcomeUnknown without an answer."""
        return self._send(operation, parameters, OutcomeUnknown)

    def read_items(self, table: str, keys: Sequence[Item]) -> list[Item]:
        """Return those of at most 100 items that exist. DynamoDB reads only some of them at a time if it is busy."""
        found: list[Item] = []
        requested: Mapping[str, Any] = {table: {"Keys": list(keys), "ConsistentRead": True}}
        give_up_at = time.monotonic() + REPEAT_SECONDS
        for failures in count(1):
            response = self.read("batch_get_item", RequestItems=requested)
            found += response["Responses"].get(table, [])
            requested = response.get("UnprocessedKeys") or {}
            if not requested:
                break
            if time.monotonic() >= give_up_at:
                raise StoreUnavailable(f"{self._name}: DynamoDB is too busy to read all items")
            time.sleep(full_jitter(failures, FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS))
        return found

    def run_all(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Call functions that send requests, several at once, and return what they return.

        After an error no further function is called, and the error is raised when those under way have ended.
        """
        if len(functions) <= 1:
            return [function() for function in functions]
        futures = [self._connect().executor.submit(function) for function in functions]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
        errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def read_clock(self, operation: str, **parameters: object) -> datetime:
        """Send a request and return the time of the server, from the header of its answer, which may be an error."""
        before = self._latest_answer
        try:
            self.read(operation, **parameters)
        except StoreUnavailable:
            if self._latest_answer is before:
                raise
        if self._latest_answer is None:
            raise StoreUnavailable(f"{self._name}: the answer has no Date header")
        return self._latest_answer.date + DATE_HEADER_DELAY

    def estimate_time(self) -> datetime | None:
        """Return the time of the server, from that of its latest answer. None: it has not answered yet."""
        if self._latest_answer is None:
            return None
        passed = timedelta(seconds=time.monotonic() - self._latest_answer.received_at)
        return self._latest_answer.date + DATE_HEADER_DELAY + passed

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.executor.shutdown()
            connection.client.close()

    def _connect(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                try:
                    client = self._build_client()
                except (BotoCoreError, ValueError) as error:
                    raise StoreUnavailable(self._describe(error)) from error
                executor = ThreadPoolExecutor(MAX_PARALLEL_REQUESTS, f"timer-store-{self._name}")
                self._connection = _Connection(client, executor)
            return self._connection

    def _build_client(self) -> Any:
        session = Session(
            aws_access_key_id=self._address.access_key,
            aws_secret_access_key=self._address.secret_key,
            region_name=self._address.region,
        )
        # A client without credentials would never look for them again.
        if session.get_credentials() is None:
            raise NoCredentialsError
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            max_pool_connections=MAX_PARALLEL_REQUESTS,
            # botocore would also repeat writes whose outcome is unknown.
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        return session.client("dynamodb", endpoint_url=self._address.endpoint, config=config)

    def _send(
        self, operation: str, parameters: Mapping[str, object], if_lost: type[TimerStoreError]
    ) -> Response:
        give_up_at = time.monotonic() + REPEAT_SECONDS
        for failures in count(1):
            try:
                response: Response = getattr(self._connect().client, operation)(**parameters)
            except ClientError as error:
                self._note_time(error.response)
                if not _is_repeatable(error, if_lost) or time.monotonic() >= give_up_at:
                    raise self._translate(error, if_lost) from error
            except NOT_SENT as error:
                raise StoreUnavailable(self._describe(error)) from error
            except LOST as error:
                raise if_lost(self._describe(error)) from error
            except BotoCoreError as error:  # the credentials cannot be renewed, for example
                raise StoreUnavailable(self._describe(error)) from error
            else:
                self._note_time(response)
                return response
            time.sleep(full_jitter(failures, FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS))
        raise AssertionError("the loop has no end")

    def _note_time(self, response: Response) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with suppress(ValueError):
            self._latest_answer = _Answer(parsedate_to_datetime(headers.get("date", "")), time.monotonic())

    def _translate(self, error: ClientError, if_lost: type[TimerStoreError]) -> Exception:
        code, message = _get_code(error), error.response["Error"].get("Message", "")
        if code in CONDITION_FAILED:
            return ConditionFailed()
        if code == NO_TABLE:
            return NoTable(
                f"{self._name}: there is no table {self._address.table}:"
                f" run `manage.py timer_store migrate {self._name}`"
            )
        described = f"{self._name}: {code}: {message}"
        if code == "ValidationException" and "size" in message.lower():
            return TimerTooLarge(described)
        return if_lost(described) if _is_server_error(error) else StoreUnavailable(described)

    def _describe(self, error: Exception) -> str:
        lines = str(error).splitlines()
        return f"{self._name}: {lines[0] if lines else type(error).__name__}"


def _is_repeatable(error: ClientError, if_lost: type[TimerStoreError]) -> bool:
    """Return whether DynamoDB has refused a request for now. An error of the server can have followed a write."""
    return _get_code(error) in THROTTLED or (_is_server_error(error) and if_lost is StoreUnavailable)


def _is_server_error(error: ClientError) -> bool:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)) >= 500


def _get_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "Unknown"))
