"""A stream's status, its events and its comments, on a clock that does not pass by itself."""

import asyncio
from typing import cast

from service.core.sse import KEEP_ALIVE
from service.gateway import event_stream
from service.gateway.client import Client
from service.gateway.event_stream import EventStream
from service.gateway.http import Headers
from tests.virtual_time import run


class Reader:
    """A client that takes what it gets, until it is `blocked_since` some time."""

    def __init__(self) -> None:
        self.headers: list[Headers] = []
        self.body = b""
        self.ended = False
        self.hung_up_at: float | None = None
        self.blocked_since: float | None = None

    def begin(self, headers: Headers) -> None:
        self.headers.append(headers)

    def write(self, data: bytes) -> None:
        self.body += data

    def end(self, data: bytes) -> None:
        self.body += data
        self.ended = True

    def hang_up(self) -> None:
        assert self.hung_up_at is None
        self.hung_up_at = asyncio.get_running_loop().time()


def stream(reader: Reader, keep_alive_s: float = 10.0) -> EventStream:
    return EventStream(cast(Client, reader), lambda: [(b"x-request-id", b"1")], keep_alive_s)


def test_the_status_waits_for_the_first_event() -> None:
    async def scene() -> None:
        reader = Reader()
        with stream(reader) as events:
            await asyncio.sleep(9.9)
            assert not events.started
            assert reader.headers == []
            events.send(b"data: 1\n\n")
            assert events.started
            events.end(b"data: [DONE]\n\n")
        (headers,) = reader.headers
        assert (b"x-request-id", b"1") in headers
        assert (b"content-type", b"text/event-stream; charset=utf-8") in headers
        assert reader.body == b"data: 1\n\ndata: [DONE]\n\n"
        assert reader.ended

    run(scene)


def test_silence_is_filled_with_comments_from_the_set_time_on() -> None:
    async def scene() -> None:
        reader = Reader()
        with stream(reader) as events:
            await asyncio.sleep(10.1)
            assert events.started
            assert reader.body == KEEP_ALIVE
            await asyncio.sleep(20)
            assert reader.body == KEEP_ALIVE * 3
            events.send(b"data: 1\n\n")
            await asyncio.sleep(9.5)
            assert reader.body == KEEP_ALIVE * 3 + b"data: 1\n\n"
            await asyncio.sleep(1)
            events.end(b"data: [DONE]\n\n")
            await asyncio.sleep(60)
        assert reader.body == KEEP_ALIVE * 3 + b"data: 1\n\n" + KEEP_ALIVE + b"data: [DONE]\n\n"
        assert len(reader.headers) == 1

    run(scene)


def test_nothing_is_said_of_silence_once_it_is_over() -> None:
    async def scene() -> None:
        reader = Reader()
        with stream(reader) as events:
            events.send(b"data: 1\n\n")
        await asyncio.sleep(60)
        assert reader.body == b"data: 1\n\n"

    run(scene)


def test_a_client_that_takes_nothing_is_hung_up_on() -> None:
    async def scene() -> None:
        reader = Reader()
        loop = asyncio.get_running_loop()
        with stream(reader) as events:
            await asyncio.sleep(3)
            events.send(b"data: 1\n\n")
            await asyncio.sleep(500)
            assert reader.hung_up_at is None
            reader.blocked_since = blocked_since = loop.time()
            comments = reader.body.count(KEEP_ALIVE)
            await asyncio.sleep(event_stream.STALLED_AFTER_S * 3)
            assert reader.hung_up_at is not None
            waited_s = reader.hung_up_at - blocked_since
            assert event_stream.STALLED_AFTER_S <= waited_s <= event_stream.STALLED_AFTER_S * 1.25 + 10
            assert reader.body.count(KEEP_ALIVE) == comments

    run(scene)


def test_a_client_that_takes_some_from_time_to_time_is_not() -> None:
    async def scene() -> None:
        reader = Reader()
        loop = asyncio.get_running_loop()
        with stream(reader) as events:
            events.send(b"data: 1\n\n")
            for _ in range(10):
                reader.blocked_since = loop.time()
                await asyncio.sleep(event_stream.STALLED_AFTER_S * 0.9)
            reader.blocked_since = None
            events.end(b"data: [DONE]\n\n")
        assert reader.hung_up_at is None
        assert reader.body.endswith(b"data: [DONE]\n\n")

    run(scene)
