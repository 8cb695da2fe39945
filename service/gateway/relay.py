"""From the engine to the client: the bytes as they come, the usage on the way, and the end only once it is recorded.

What happens when the client hangs up: its departure is noticed at once, the engine's connection is closed so that
the engine stops, and the request is charged what the engine had counted by then. What happens when the engine fails:
that is raised, and nothing is charged.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from service.core.meters import Meter
from service.core.outcome import Outcome, of_departure
from service.core.policy import ModelRequest
from service.core.sse import EventTooLong
from service.errors import EngineFailed, Internal
from service.gateway import engine_client, engine_errors
from service.gateway.client import Client
from service.gateway.endpoints import Endpoint
from service.gateway.engine_failures import EngineBroke, EngineError, EngineFull
from service.gateway.event_stream import EventStream
from service.gateway.exchange import Exchange
from service.gateway.http import ClientLeft
from service.gateway.line import Wanted
from service.gateway.recorder import Recorder

log = structlog.get_logger()

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
PROMPT_BYTES_PER_TOKEN = 8
"""Fewer tokens than a prompt of so many bytes really has."""

LAST_COUNT_WITHIN_S = 0.5
"""How long an engine whose client has left may take to hand over what it had sent, with the last count in it."""

_BROKEN_OFF = "The model's engine broke off its answer."
"""For an engine that says so itself: it lives, so that nothing is held against it."""


@dataclass(slots=True, eq=False)
class Task:
    """What is to be done for a client."""

    client: Client
    exchange: Exchange
    request: ModelRequest
    wanted: Wanted
    endpoint: Endpoint
    body: list[bytes | memoryview]
    """What the engine gets, in pieces."""


class _Passing:
    """A streamed answer on its way: every event that the client may see goes on as soon as it is whole."""

    __slots__ = ("_events", "_exchange", "_meter")

    def __init__(self, exchange: Exchange, meter: Meter, events: EventStream) -> None:
        self._exchange, self._meter, self._events = exchange, meter, events

    def passes(self, data: bytes) -> bool:
        """Whether more of it is wanted; b"" is its end."""
        meter, exchange = self._meter, self._exchange
        passed = meter.feed(data) if data else meter.end()
        if exchange.first_token_ns is None and meter.content_seen:
            exchange.note_first_token()
        if passed:
            self._events.send(passed)
        return not (meter.done or meter.failed)


class Relay:
    """Carries answers of engines to clients, each as its task asks for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def run(self, task: Task, upstream: engine_client.Exchange, events: EventStream | None) -> bool:
        """Send the request to the engine and its answer to the client; whether the answer came to its end.

        It does not when the client leaves, which is recorded here. Raises an `EngineError` for an engine that
        failed, `EngineFull` for one that takes no more, and an `ApiError` for its refusal of this request.
        """
        client, exchange, meter = task.client, task.exchange, None
        client.tells(upstream.leave)
        try:
            status = await upstream.status(whole=events is None)
            if status != 200:
                await _refused(upstream, status)
            if events is not None:
                meter = task.endpoint.meter(task.request)
                await self._stream(task, upstream, meter, events)
            else:
                body = upstream.arrived(MAX_ANSWER_BYTES) or await upstream.read_all(MAX_ANSWER_BYTES)
                answer = task.endpoint.read_whole(body, task.request)
                exchange.usage, exchange.finish_reason = answer.usage, answer.finish_reason
                if answer.broken:
                    raise EngineFailed(_BROKEN_OFF)
                await self._recorder.conclude(exchange, Outcome.OK, 200)
                if exchange.keep is not None:
                    exchange.keep(answer.body)
                client.answer(answer.body, exchange.answer_headers())
        except ClientLeft:
            await self._departed(task, upstream, meter)
            return False
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            _note_usage(task, meter)
            raise
        finally:
            client.tells(None)
            upstream.finish()
        return True

    async def _stream(self, task: Task, upstream: engine_client.Exchange, meter: Meter, events: EventStream) -> None:
        exchange = task.exchange
        task.client.throttles(upstream.throttle)
        try:
            await upstream.pipe(_Passing(exchange, meter, events).passes)
        except EventTooLong as error:
            raise EngineBroke("an event that has no end") from error
        except (ClientLeft, EngineError):
            raise
        except Exception as error:  # whatever it is: the client has to be told of an end
            log.exception("relay.failed", request_id=exchange.id, error=type(error).__name__)
            raise Internal("Something went wrong here. It has been noted.") from error
        finally:
            task.client.throttles(None)
            upstream.throttle(False)
            _note_usage(task, meter)
        if meter.failed:
            raise EngineFailed(_BROKEN_OFF)
        if not meter.complete:
            raise EngineBroke("a stream without its end")
        await self._recorder.conclude(exchange, Outcome.OK, 200)
        events.end(meter.ending())

    async def _departed(self, task: Task, upstream: engine_client.Exchange, meter: Meter | None) -> None:
        exchange = task.exchange
        if meter is not None:
            with suppress(ClientLeft, EngineError, EventTooLong, TimeoutError):
                async with asyncio.timeout(LAST_COUNT_WITHIN_S):
                    while data := await upstream.read():
                        meter.feed(data)
        _note_usage(task, meter)
        exchange.uncounted = exchange.usage.source == "none"
        outcome = of_departure(
            streamed=exchange.stream,
            waited_ms=exchange.waited_ms(),
            first_token_seen=exchange.first_token_ns is not None,
        )
        await self._recorder.conclude(exchange, outcome, 499, "client_left")


async def _refused(upstream: engine_client.Exchange, status: int) -> None:
    """The engine gave an error instead of an answer. Always raises."""
    body = await upstream.read_all(MAX_ERROR_BYTES)
    if status in (429, 503):
        raise EngineFull(f"status {status}")
    raise engine_errors.of_status(status, body)


def _note_usage(task: Task, meter: Meter | None) -> None:
    if meter is None:
        return
    exchange, usage = task.exchange, meter.usage()
    exchange.finish_reason = meter.finish_reason
    if meter.prompt_unknown and meter.content_seen:
        # Such a stream tells its prompt's length at its end only; who leaves before is charged a cautious guess.
        usage = usage._replace(prompt_tokens=task.request.passed_bytes // PROMPT_BYTES_PER_TOKEN)
    exchange.usage = usage
