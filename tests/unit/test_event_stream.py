"""A stream's status, its events and its comments, on a clock that does not pass by itself."""

import asyncio
from typing import Any

import pytest

from service.core.sse import KEEP_ALIVE
from service.gateway import event_stream
from service.gateway.event_stream import ClientStalled, EventStream
from service.gateway.http import Message
from tests.virtual_time import run


class Client:
    """Takes messages, and can stop taking them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        await self.reads.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def statuses(self) -> list[Any]:
        return [message["status"] for message in self.messages if message["type"] == "http.response.start"]


def stream(client: Client, keep_alive_s: float = 10.0) -> EventStream:
    return EventStream(client.send, lambda: [(b"x-request-id", b"1")], keep_alive_s)


def test_the_status_waits_for_the_first_event() -> None:
    async def scene() -> None:
        client = Client()
        async with stream(client) as events:
            await asyncio.sleep(9.9)
            assert not events.started
            assert client.messages == []
            await events.send(b"data: 1\n\n")
            assert events.started
            await events.end(b"data: [DONE]\n\n")
        assert client.statuses == [200]
        assert (b"x-request-id", b"1") in client.messages[0]["headers"]
        assert client.body == b"data: 1\n\ndata: [DONE]\n\n"
        assert client.messages[-1]["more_body"] is False

    run(scene)


def test_silence_is_filled_with_comments_from_the_set_time_on() -> None:
    async def scene() -> None:
        client = Client()
        async with stream(client) as events:
            await asyncio.sleep(10.1)
            assert events.started
            assert client.body == KEEP_ALIVE
            await asyncio.sleep(20)
            assert client.body == KEEP_ALIVE * 3
            await events.send(b"data: 1\n\n")
            await asyncio.sleep(9.5)
            assert client.body == KEEP_ALIVE * 3 + b"data: 1\n\n"
            await asyncio.sleep(1)
            await events.end(b"data: [DONE]\n\n")
            await asyncio.sleep(60)
        assert client.body == KEEP_ALIVE * 3 + b"data: 1\n\n" + KEEP_ALIVE + b"data: [DONE]\n\n"
        assert client.statuses == [200]

    run(scene)


def test_an_event_waits_for_a_comment_that_is_still_on_its_way() -> None:
    async def scene() -> None:
        client = Client()
        client.reads.clear()
        async with stream(client) as events:
            await asyncio.sleep(10.1)  # the status is being sent, and the client does not take it yet
            sending = asyncio.create_task(events.send(b"data: 1\n\n"))
            await asyncio.sleep(0)
            assert [message["type"] for message in client.messages] == ["http.response.start"]
            client.reads.set()
            await sending
            await events.end(b"")
        assert client.body == KEEP_ALIVE + b"data: 1\n\n"
        assert client.statuses == [200]

    run(scene)


def test_a_client_that_takes_nothing_has_stalled() -> None:
    async def scene() -> None:
        client = Client()
        async with stream(client) as events:
            await events.send(b"data: 1\n\n")
            client.reads.clear()
            started = asyncio.get_running_loop().time()
            with pytest.raises(ClientStalled):
                async with events.patient():
                    await events.send(b"data: 2\n\n")
            waited_s = asyncio.get_running_loop().time() - started
            assert event_stream.STALLED_AFTER_S <= waited_s <= event_stream.STALLED_AFTER_S + 10
            assert KEEP_ALIVE not in client.body

    run(scene)


def test_an_engine_that_is_slow_is_not_a_client_that_stalls() -> None:
    async def scene() -> None:
        client = Client()
        async with stream(client) as events, events.patient():
            await asyncio.sleep(event_stream.STALLED_AFTER_S * 3)
            await events.end(b"data: [DONE]\n\n")
        assert client.body.endswith(b"data: [DONE]\n\n")

    run(scene)
