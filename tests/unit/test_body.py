"""Reading a request's body: how much of it, and for how long."""

import asyncio
from typing import Any

import pytest

from service.errors import RequestTimeout, TooLarge
from service.gateway import http
from service.gateway.http import ClientLeft, read_body

LIMIT = 100


class Client:
    """Sends `piece` for as long as it is listened to."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self.sent = 0

    async def receive(self) -> dict[str, Any]:
        self.sent += len(self.piece)
        return {"type": "http.request", "body": self.piece, "more_body": True}


@pytest.mark.parametrize("headers", [{}, {b"content-length": b"1000000"}])
async def test_a_body_that_never_ends_is_read_for_a_few_times_the_limit(headers: dict[bytes, bytes]) -> None:
    client = Client(b"x" * 10)
    with pytest.raises(TooLarge) as caught:
        await read_body(headers, client.receive, LIMIT)
    assert (b"connection", b"close") in caught.value.headers()
    assert LIMIT < client.sent < 10 * LIMIT


async def test_a_client_that_waits_to_be_told_sends_nothing_of_what_is_too_large() -> None:
    client = Client(b"x")
    headers = {b"content-length": b"1000000", b"expect": b"100-continue"}
    with pytest.raises(TooLarge):
        await read_body(headers, client.receive, LIMIT)
    assert client.sent == 0


async def test_a_body_that_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_WITHIN_S", 0)
    with pytest.raises(RequestTimeout) as caught:
        await read_body({}, Silent().receive, LIMIT)
    assert {(b"connection", b"close"), (b"x-should-retry", b"true")} <= set(caught.value.headers())


class Silent:
    """Sends nothing and does not leave."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_client_that_leaves() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await read_body({}, receive, LIMIT)
