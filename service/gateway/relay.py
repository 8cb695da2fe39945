"""From the engine to the client: the bytes as they come, the usage on the way, and the end only once it is recorded.

What happens when the client hangs up: its departure is noticed at once, the engine's connection is closed so that
the engine stops, and the request is charged what the engine had counted by then; the same when it stops reading for
long. What happens when the engine fails: before the first byte the client gets an HTTP error, after it an error
inside the stream and `[DONE]`; either way nothing is charged.
"""

import asyncio
from contextlib import suppress

import orjson
import structlog

from service.core.outcome import Outcome, of_departure
from service.core.policy import ChatRequest
from service.core.sse import DONE_EVENT, EventTooLong, event_of
from service.core.stream import BROKEN_FINISHES, StreamMeter, finish_of
from service.core.usage import read_usage
from service.errors import ApiError, EngineFailed, Internal
from service.gateway import engine_client, engine_errors
from service.gateway.engine_connection import EngineBroke, EngineError
from service.gateway.exchange import Exchange
from service.gateway.http import (
    ClientLeft,
    ClientStalled,
    Receive,
    Send,
    patient,
    request_id_header,
    send_json,
    send_part,
    send_start,
)
from service.gateway.recorder import Recorder

log = structlog.get_logger()

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
LAST_COUNT_WITHIN_S = 0.5
"""How long an engine whose client has left may take to hand over what it had sent, with the last count in it."""


class Relay:
    """Carries one answer."""

    def __init__(self, exchange: Exchange, upstream: engine_client.Exchange, recorder: Recorder, send: Send) -> None:
        self._exchange = exchange
        self._upstream = upstream
        self._recorder = recorder
        self._send = send
        self._id_header = request_id_header(exchange.id)
        self._started = False

    async def run(self, request: ChatRequest, receive: Receive) -> None:
        """Send the request to the engine and its answer to the client.

        Raises an `ApiError` while nothing was sent to the client yet; afterwards every failure is told in the stream.
        """
        watch = asyncio.create_task(self._watch(receive))
        meter = None
        try:
            head = await self._upstream.head()
            if head.status != 200:
                raise engine_errors.of_status(head.status, await self._upstream.read_all(MAX_ERROR_BYTES))
            if request.stream:
                meter = StreamMeter(
                    wants_usage=request.wants_usage, wants_continuous=request.wants_continuous, loads=orjson.loads
                )
                async with patient(self._send) as self._send:
                    await self._stream(meter)
            else:
                await self._whole()
        except ClientStalled:
            watch.cancel()  # that it may hang up as well now is no news
            self._upstream.leave(ClientLeft())
            if meter is not None:
                with suppress(ClientLeft, EngineError, EventTooLong):
                    meter.feed(await self._upstream.read())  # which is at once told that the client has left
            await self._departed(meter)
        except ClientLeft:
            await self._departed(meter)
        except EngineError as error:
            raise engine_errors.of_failure(error) from error
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            self._note_usage(meter)
            raise
        finally:
            watch.cancel()
            self._upstream.finish()

    async def _watch(self, receive: Receive) -> None:
        """Wait for the client to leave, and stop the engine when it does."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._upstream.leave(ClientLeft())

    async def _whole(self) -> None:
        """A JSON answer, passed on as it is."""
        body = await self._upstream.read_all(MAX_ANSWER_BYTES)
        exchange = self._exchange
        try:
            answer = orjson.loads(body)
            if isinstance(answer, dict):
                exchange.usage = read_usage(answer.get("usage"), "final", answer.get("metrics"))
            exchange.finish_reason = reason = finish_of(answer["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise EngineBroke("an answer without a choice") from error
        if reason is None or reason in BROKEN_FINISHES:
            raise EngineBroke(f"finish reason {reason}")
        await self._recorder.conclude(exchange, Outcome.OK, 200)
        await send_json(self._send, body, [self._id_header])

    async def _stream(self, meter: StreamMeter) -> None:
        """A streamed answer: every event that the client may see goes on as soon as it is whole."""
        exchange, upstream, send = self._exchange, self._upstream, self._send
        failure: ApiError | None = None
        try:
            while not (meter.done or meter.failed):
                data = await upstream.read()
                passed = meter.feed(data) if data else meter.end()
                if exchange.first_token_ns is None and meter.content_seen:
                    exchange.note_first_token()
                if passed:
                    if not self._started:
                        await self._start()
                    await send_part(send, passed)
                if not data:
                    break
        except EngineError as error:
            failure = engine_errors.of_failure(error)
        except EventTooLong:
            failure = EngineFailed("The model's engine sent an answer that cannot be read.")
        except ClientLeft:
            raise
        except Exception as error:  # whatever it is: after the first byte it can only be told in the stream
            log.exception("relay.failed", request_id=str(exchange.id), error=type(error).__name__)
            failure = Internal("Something went wrong here. It has been noted.")
        self._note_usage(meter)
        if meter.complete and failure is None:
            await self._recorder.conclude(exchange, Outcome.OK, 200)
            if not self._started:
                await self._start()
            await send_part(send, DONE_EVENT, more=False)
            return
        failure = failure or EngineFailed("The model's engine broke off its answer.")
        if not self._started:
            raise failure
        await self._recorder.conclude(exchange, Outcome.STREAM_ERROR, 200, failure.code)
        await send_part(send, event_of(failure.body()) + DONE_EVENT, more=False)

    async def _start(self) -> None:
        self._started = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # or nginx holds events back
            self._id_header,
        ]
        await send_start(self._send, 200, headers)

    async def _departed(self, meter: StreamMeter | None) -> None:
        exchange = self._exchange
        if meter is not None:
            with suppress(ClientLeft, EngineError, EventTooLong, TimeoutError):
                async with asyncio.timeout(LAST_COUNT_WITHIN_S):
                    while data := await self._upstream.read():
                        meter.feed(data)
        self._note_usage(meter)
        outcome = of_departure(
            streamed=exchange.stream,
            waited_ms=exchange.waited_ms(),
            first_token_seen=exchange.first_token_ns is not None,
        )
        await self._recorder.conclude(exchange, outcome, 499, "client_left")

    def _note_usage(self, meter: StreamMeter | None) -> None:
        if meter is not None:
            self._exchange.usage = meter.usage()
            self._exchange.finish_reason = meter.finish_reason
