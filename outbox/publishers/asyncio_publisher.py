"""The base of publishers whose client libraries use asyncio."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from outbox.envelope import Envelope
from outbox.publisher import PoisonEvent, PublishError
from outbox.publishers.rounds import Message, publish_in_rounds

# How long the end of a connection may take.
CLOSE_SECONDS = 5.0
# The network may have ended a connection that was idle for longer, unnoticed. The next batch begins another.
MAX_IDLE_SECONDS = 60.0


class AsyncioPublisher(ABC):
    """A publisher whose event loop runs within `publish` and `close` only, in the thread that calls them."""

    # The broker's name in messages.
    broker: ClassVar[str]
    # The exceptions by which the client library says that the broker does not accept events now.
    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, name: str, *, max_event_bytes: int, timeout: float) -> None:
        self.name = name
        self.max_event_bytes = max_event_bytes
        self.timeout = timeout
        self._runner: asyncio.Runner | None = None
        self._used_at = 0.0

    def publish(self, events: Sequence[Envelope]) -> None:
        if not events:
            return
        if self._runner is not None and time.monotonic() - self._used_at > MAX_IDLE_SECONDS:
            self.close()
        try:
            runner = self._runner or self._begin()
            publish_in_rounds(events, self.max_event_bytes, partial(self._send, runner))
        except PoisonEvent:
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._used_at = time.monotonic()

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with suppress(Exception), runner:
                runner.run(self._finish([self.disconnect()], CLOSE_SECONDS))

    @abstractmethod
    async def connect(self) -> None:
        """Begin a connection. It may set `max_event_bytes` to what the server accepts at most."""

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Return when the broker has accepted a message. Raise PoisonEvent for one that it will never accept."""

    @abstractmethod
    async def disconnect(self) -> None:
        """End the connection, if there is one."""

    def explain(self, error: Exception) -> str:
        """Return what an exception of the client library means. The text contains no secret."""
        return str(error) or type(error).__name__

    def _begin(self) -> asyncio.Runner:
        runner = self._runner = asyncio.Runner(loop_factory=_build_loop)
        (problem,) = self._run(runner, [self.connect()])
        if problem is not None:
            raise problem
        return runner

    def _send(self, runner: asyncio.Runner, messages: Sequence[Message]) -> list[PublishError | None]:
        return self._run(runner, [self.send(message) for message in messages])

    def _run(
        self, runner: asyncio.Runner, coroutines: Sequence[Coroutine[Any, Any, None]]
    ) -> list[PublishError | None]:
        return [self._judge(task) for task in runner.run(self._finish(coroutines, self.timeout))]

    async def _finish(
        self, coroutines: Sequence[Coroutine[Any, Any, None]], seconds: float
    ) -> list[asyncio.Task[None]]:
        """Run coroutines until all have ended, or the time is up: those that go on are cancelled."""
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel(f"no answer within {seconds:g} s")
        if late:
            await asyncio.wait(late, timeout=CLOSE_SECONDS)
        return tasks

    def _judge(self, task: asyncio.Task[None]) -> PublishError | None:
        if not task.done():
            return PublishError(f"{self.broker}: no answer within {self.timeout:g} s")
        try:
            error = task.exception()
        except asyncio.CancelledError as cancellation:
            # Client libraries cancel what waits for an answer when the connection ends.
            reason = next((text for text in cancellation.args if isinstance(text, str)), "")
            return PublishError(f"{self.broker}: {reason or 'the connection has ended'}")
        if error is None or isinstance(error, PublishError):
            return error
        if isinstance(error, self.errors):
            return PublishError(f"{self.broker}: {self.explain(error)}")
        raise error


def _build_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # What matters of a connection that has failed is raised. The rest would be logged once more, with a traceback.
    loop.set_exception_handler(lambda _loop, _context: None)
    return loop
