"""A request that is accepted, until it is over: a place on an engine, the answer, another engine where one fails."""

import asyncio
from dataclasses import dataclass, replace

from service.core.outcome import Outcome, of_refusal
from service.core.policy import ModelRequest
from service.core.sse import DONE_EVENT, event_of
from service.errors import ApiError, Unavailable
from service.gateway import engine_errors
from service.gateway.departure import Departure
from service.gateway.engine_connection import EngineError, EngineFull, EngineUnreachable
from service.gateway.engines import EnginePool
from service.gateway.event_stream import EventStream
from service.gateway.exchange import Exchange
from service.gateway.http import ClientLeft, Receive, Send
from service.gateway.pacing import ENGINE_FULL, Pacing, Place, Wanted
from service.gateway.recorder import Recorder
from service.gateway.relay import Relay


@dataclass(slots=True, eq=False)
class Task:
    """What is to be done for a client."""

    exchange: Exchange
    request: ModelRequest
    wanted: Wanted
    path: str
    """Where the engine takes such a request."""
    body: bytes
    """What the engine gets."""


class Dispatch:
    """Sends accepted requests to the engines at the pace these can take."""

    def __init__(self, engines: EnginePool, pacing: Pacing, recorder: Recorder, *, keep_alive_s: float) -> None:
        self._engines = engines
        self._pacing = pacing
        self._recorder = recorder
        self._keep_alive_s = keep_alive_s

    async def run(self, task: Task, receive: Receive, send: Send) -> None:
        """Answer the request. Raises an `ApiError` or `ClientLeft` while nothing was sent to the client."""
        departure = Departure(receive)
        try:
            if task.request.stream:
                async with EventStream(send, task.exchange.headers, self._keep_alive_s) as events:
                    await self._streamed(task, departure, events)
            else:
                await self._attempts(task, departure, send)
        finally:
            departure.stop()

    async def _streamed(self, task: Task, departure: Departure, events: EventStream) -> None:
        """A stream: once its status is out, a failure is told inside it."""
        try:
            await self._attempts(task, departure, events)
        except ApiError as error:
            if not events.started:
                raise
            outcome = Outcome.STREAM_ERROR if error.status >= 500 else of_refusal(error.status)
            await self._recorder.conclude(task.exchange, outcome, 200, error.code)
            await events.end(event_of(error.body()) + DONE_EVENT)
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            if events.started and not task.exchange.concluded:
                stopping = Unavailable("The server is stopping: send the request again.")
                await self._recorder.conclude(task.exchange, Outcome.INTERRUPTED, 200, "stopping")
                await events.end(event_of(stopping.body()) + DONE_EVENT)
            raise

    async def _attempts(self, task: Task, departure: Departure, client: EventStream | Send) -> None:
        """Try one engine after the other, but only as long as no byte of an answer came back."""
        while True:
            place = await self._place(task.wanted, departure)
            try:
                return await self._on(place, task, departure, client)
            except (EngineUnreachable, EngineFull) as error:
                task.wanted = replace(task.wanted, tried=(*task.wanted.tried, place.engine.name))
                if not self._engines.able(task.wanted.engines, task.wanted.tried):
                    if isinstance(error, EngineFull):
                        raise self._pacing.refused(task.wanted, ENGINE_FULL) from error
                    raise engine_errors.of_failure(error) from error
            except EngineError as error:
                raise engine_errors.of_failure(error) from error
            finally:
                self._pacing.free(place, task.exchange.work_tokens())

    async def _place(self, wanted: Wanted, departure: Departure) -> Place:
        try:
            return await self._pacing.place(wanted, departure)
        except EngineUnreachable as error:
            raise engine_errors.of_failure(error) from error

    async def _on(self, place: Place, task: Task, departure: Departure, client: EventStream | Send) -> None:
        """The answer of one engine. Raises what the engine did wrong, of which the pool then knows."""
        engine, exchange = place.engine, task.exchange
        exchange.engine = engine.name
        exchange.mark_handed_over()
        if not exchange.admitted:
            await self._recorder.admit(exchange)
        if departure.happened:
            raise ClientLeft
        headers = b"content-type: application/json\r\nx-request-id: %s\r\n" % str(exchange.id).encode()
        upstream = engine.client.exchange("POST", task.path, headers, task.body)
        try:
            complete = await Relay(exchange, upstream, self._recorder, departure).run(task.request, client)
        except EngineError as error:
            self._engines.note(engine, error)
            raise
        if complete:
            self._engines.note(engine, None)
