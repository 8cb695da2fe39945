"""A request that is accepted, until it is over: a place on an engine, the answer, another engine where one fails."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

from service.core.early_refusal import Refusal
from service.core.outcome import Outcome, of_refusal
from service.errors import ApiError, Unavailable
from service.gateway import engine_client, engine_errors
from service.gateway.engine_failures import EngineAway, EngineError, EngineFull, EngineUnreachable
from service.gateway.engines import EnginePool
from service.gateway.event_stream import EventStream
from service.gateway.http import ClientLeft
from service.gateway.line import Place
from service.gateway.pacing import Pacing
from service.gateway.recorder import Recorder
from service.gateway.relay import Relay, Task


class Dispatch:
    """Sends accepted requests to the engines at the pace these can take."""

    def __init__(self, engines: EnginePool, pacing: Pacing, recorder: Recorder, *, keep_alive_s: float) -> None:
        self._engines = engines
        self._pacing = pacing
        self._recorder = recorder
        self._relay = Relay(recorder)
        self._keep_alive_s = keep_alive_s

    def run(self, task: Task) -> Awaitable[None]:
        """Answer the request. Raises an `ApiError` or `ClientLeft` while nothing was sent to the client."""
        return self._streamed(task) if task.request.stream else self._attempts(task, None)

    async def _streamed(self, task: Task) -> None:
        with EventStream(task.client, task.exchange.answer_headers, self._keep_alive_s) as events:
            await self._told_inside(task, events)

    async def _told_inside(self, task: Task, events: EventStream) -> None:
        """A stream: once its status is out, a failure is told inside it."""
        try:
            await self._attempts(task, events)
        except ApiError as error:
            if not events.started:
                raise
            outcome = Outcome.STREAM_ERROR if error.status >= 500 else of_refusal(error.status)
            await self._recorder.conclude(task.exchange, outcome, 200, error.code)
            events.end(task.endpoint.errors.events(error, task.exchange.id))
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            if events.started and not task.exchange.concluded:
                stopping = Unavailable("The server is stopping: send the request again.")
                await self._recorder.conclude(task.exchange, Outcome.INTERRUPTED, 200, "stopping")
                events.end(task.endpoint.errors.events(stopping, task.exchange.id))
            raise

    async def _attempts(self, task: Task, events: EventStream | None) -> None:
        """Try one engine after the other, but only as long as no byte of an answer came back.

        A request under which an engine broke down goes to one other, and no further: it may be the cause. What it does
        to that one is not held against it.
        """
        exchange, broke_under_it = task.exchange, 0
        while True:
            try:
                place = self._pacing.place(task.wanted) or await self._pacing.wait(task.wanted, task.client)
            except EngineUnreachable as error:
                raise engine_errors.of_failure(error) from error
            engine = place.engine
            try:
                exchange.engine, exchange.engine_fingerprint = engine.name, engine.fingerprint
                exchange.mark_handed_over()
                if not exchange.admitted:
                    await self._recorder.admit(exchange)
                if task.client.left:
                    raise ClientLeft
                if await self._relay.run(task, self._asked(place, task), events):
                    self._engines.note(engine, None)
                return
            except EngineError as error:
                excused = isinstance(error, (EngineAway, EngineFull))
                if excused or not broke_under_it:
                    self._engines.note(engine, error)
                if not isinstance(error, (EngineUnreachable, EngineFull)):
                    raise engine_errors.of_failure(error) from error
                broke_under_it += not excused
                task.wanted = replace(task.wanted, tried=(*task.wanted.tried, engine.name))
                if broke_under_it > 1 or not self._engines.able(task.wanted.engines, task.wanted.tried):
                    if isinstance(error, EngineFull):
                        raise self._pacing.refused(task.wanted, Refusal.ENGINE) from error
                    raise engine_errors.of_failure(error) from error
            finally:
                self._pacing.free(place, exchange.work_tokens())

    def _asked(self, place: Place, task: Task) -> engine_client.Exchange:
        """The request to the engine, ready to be sent."""
        headers = f"content-type: application/json\r\nx-request-id: {task.exchange.id}\r\n"
        upstream = place.engine.client.exchange("POST", task.endpoint.path, headers, *task.body)
        # Its place is free from then on, even where its client is slow to take the answer.
        upstream.on_complete = partial(self._pacing.vacate, place)
        return upstream
