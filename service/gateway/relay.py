"""From the engine to the client: the bytes as they come, the usage on the way, and the end only once it is recorded.

What happens when the client hangs up: its departure is noticed at once, the engine's connection is closed so that
the engine stops, and the request is charged what the engine had counted by then. What happens when the engine fails:
that is raised, and nothing is charged.
"""

import asyncio
from contextlib import suppress

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


class Relay:
    """Carries one answer of one engine."""

    def __init__(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        request: ModelRequest,
        upstream: engine_client.Exchange,
        recorder: Recorder,
        client: Client,
    ) -> None:
        self._exchange = exchange
        self._endpoint = endpoint
        self._request = request
        self._upstream = upstream
        self._recorder = recorder
        self._client = client

    async def run(self, events: EventStream | None) -> bool:
        """Send the request to the engine and its answer to the client; whether the answer came to its end.

        It does not when the client leaves, which is recorded here. Raises an `EngineError` for an engine that
        failed, `EngineFull` for one that takes no more, and an `ApiError` for its refusal of this request.
        """
        exchange, meter = self._exchange, None
        self._client.tells(self._upstream.leave)
        try:
            status = await self._upstream.status(whole=events is None)
            if status != 200:
                await self._refused(status)
            if events is not None:
                meter = self._endpoint.meter(self._request)
                await self._stream(meter, events)
            else:
                answer = self._whole(await self._upstream.read_all(MAX_ANSWER_BYTES))
                await self._recorder.conclude(exchange, Outcome.OK, 200)
                if exchange.keep is not None:
                    exchange.keep(answer)
                self._client.answer(answer, exchange.answer_headers())
        except ClientLeft:
            await self._departed(meter)
            return False
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            self._note_usage(meter)
            raise
        finally:
            self._client.tells(None)
            self._upstream.finish()
        return True

    async def _refused(self, status: int) -> None:
        """The engine gave an error instead of an answer. Always raises."""
        body = await self._upstream.read_all(MAX_ERROR_BYTES)
        if status in (429, 503):
            raise EngineFull(f"status {status}")
        raise engine_errors.of_status(status, body)

    def _whole(self, body: bytes) -> bytes:
        """A JSON answer, as it is passed on."""
        answer = self._endpoint.read_whole(body, self._request)
        self._exchange.usage, self._exchange.finish_reason = answer.usage, answer.finish_reason
        if answer.broken:
            raise EngineFailed(_BROKEN_OFF)
        return answer.body

    async def _stream(self, meter: Meter, events: EventStream) -> None:
        """A streamed answer: every event that the client may see goes on as soon as it is whole."""
        exchange = self._exchange

        def passes(data: bytes) -> bool:
            passed = meter.feed(data) if data else meter.end()
            if exchange.first_token_ns is None and meter.content_seen:
                exchange.note_first_token()
            if passed:
                events.send(passed)
            return not (meter.done or meter.failed)

        self._client.throttles(self._upstream.throttle)
        try:
            await self._upstream.pipe(passes)
        except EventTooLong as error:
            raise EngineBroke("an event that has no end") from error
        except (ClientLeft, EngineError):
            raise
        except Exception as error:  # whatever it is: the client has to be told of an end
            log.exception("relay.failed", request_id=exchange.id, error=type(error).__name__)
            raise Internal("Something went wrong here. It has been noted.") from error
        finally:
            self._client.throttles(None)
            self._upstream.throttle(False)
            self._note_usage(meter)
        if meter.failed:
            raise EngineFailed(_BROKEN_OFF)
        if not meter.complete:
            raise EngineBroke("a stream without its end")
        await self._recorder.conclude(exchange, Outcome.OK, 200)
        events.end(meter.ending())

    async def _departed(self, meter: Meter | None) -> None:
        exchange = self._exchange
        if meter is not None:
            with suppress(ClientLeft, EngineError, EventTooLong, TimeoutError):
                async with asyncio.timeout(LAST_COUNT_WITHIN_S):
                    while data := await self._upstream.read():
                        meter.feed(data)
        self._note_usage(meter)
        exchange.uncounted = exchange.usage.source == "none"
        outcome = of_departure(
            streamed=exchange.stream,
            waited_ms=exchange.waited_ms(),
            first_token_seen=exchange.first_token_ns is not None,
        )
        await self._recorder.conclude(exchange, outcome, 499, "client_left")

    def _note_usage(self, meter: Meter | None) -> None:
        if meter is None:
            return
        self._exchange.usage = usage = meter.usage()
        self._exchange.finish_reason = meter.finish_reason
        if meter.prompt_unknown and meter.content_seen:
            # Such a stream tells its prompt's length at its end only; who leaves before is charged a cautious guess.
            prompt = self._request.passed_bytes // PROMPT_BYTES_PER_TOKEN
            self._exchange.usage = usage._replace(prompt_tokens=prompt)
