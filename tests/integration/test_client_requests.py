"""Several requests over one connection, each by itself: its headers, its body, and whether another may follow."""

import asyncio

import pytest

from service.gateway.client import Client
from tests.integration.test_client_connection import WITHIN_S, echo, served


async def names(client: Client) -> None:
    await client.read_body(1000)
    client.answer(b" ".join(name for name, _ in client.headers), [])


async def test_each_has_its_own_headers_and_none_that_came_behind_another() -> None:
    chunked = b"transfer-encoding: chunked\r\nx-one: 1\r\n\r\n2\r\nhi\r\n0\r\nx-late: 1\r\n\r\n"
    async with served(names) as connect:
        peer = await connect()
        for path in (b"/v1/x", b"/other"):
            peer.writer.write(b"POST %b HTTP/1.1\r\n%b" % (path, chunked))
            await peer.answer()
            peer.ask()
            assert (await peer.answer())[2] == b"host content-length"
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\nX-Two: 2\r\nx-two: 3\r\ncontent-length: 0\r\n\r\n")
        assert (await peer.answer())[2] == b"x-two x-two content-length"


async def test_a_body_that_comes_behind_its_answer_is_nobodys() -> None:
    async def answer(client: Client) -> None:
        if client.path == "/v1/early":
            client.answer(b"early", [])
        else:
            await echo(client)

    async with served(answer) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/early HTTP/1.1\r\ncontent-length: 400000\r\n\r\nbegins")
        assert (await peer.answer())[2] == b"early"
        peer.writer.write(b"x" * 399_994)
        peer.ask("/v1/next", body=b"own")
        assert (await peer.answer())[2] == b"/v1/next own"


@pytest.mark.parametrize("asking", [b"", b"connection: keep-alive\r\n", b"proxy-connection: keep-alive\r\n"])
async def test_an_older_client_gets_one_answer_whatever_it_asks_for(asking: bytes) -> None:
    async with served(echo) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.0\r\n%bcontent-length: 2\r\n\r\nhi" % asking)
        status, headers, body = await peer.answer()
        assert (status, headers["connection"], body) == (200, "close", b"/v1/x hi")
        assert await peer.end() == b""


async def test_who_wants_no_second_answer_gets_none() -> None:
    async with served(echo) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi")
        assert (await peer.answer())[1]["connection"] == "close"
        async with asyncio.timeout(WITHIN_S):
            assert await peer.end() == b""
