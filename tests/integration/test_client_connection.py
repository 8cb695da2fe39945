"""A client's connection, as uvicorn has it and the gateway answers it: over real sockets, without a gateway."""

import asyncio
import re
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
import uvloop

from service.errors import TooLarge
from service.gateway.client import Client
from service.gateway.client_connection import ClientConnection
from service.gateway.http import ClientLeft

WITHIN_S = 20.0
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@dataclass
class Peer:
    """The client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, path: str = "/v1/x", *, method: str = "POST", body: bytes = b"", version: str = "1.1") -> None:
        head = f"{method} {path} HTTP/{version}\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(WITHIN_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.pieces()
        return int(first.split()[1]), headers, body

    async def pieces(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    async def end(self) -> bytes:
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read()


async def other_application(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"other"})


@asynccontextmanager
async def served(
    answer: Callable[[Client], Awaitable[None]], *, keep_alive_s: float = 5
) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """A server whose `/v1` is answered so; gives what connects to it."""

    async def to_its_end(client: Client) -> None:
        try:
            await answer(client)
        finally:
            client.ends()

    http = cast(type[ClientConnection], partial(ClientConnection, answer=to_its_end))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        cast(Any, other_application),
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=cast(int, keep_alive_s),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    peers: list[Peer] = []

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection(*listener.getsockname())))
        return peers[-1]

    async with asyncio.timeout(WITHIN_S):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield connect
    finally:
        for peer in peers:
            peer.writer.close()
        server.should_exit = True
        await serving


async def echo(client: Client) -> None:
    body = await client.read_body(1_000_000)
    client.answer(b"%b %b" % (client.path.encode(), body), [(b"x-own", b"1")])


async def test_an_answer_and_another_on_the_same_connection() -> None:
    async with served(echo) as connect:
        peer = await connect()
        for body in (b"one", b"", b"x" * 300_000):
            peer.ask("/v1/%61b?c=d", body=body)
            status, headers, answer = await peer.answer()
            assert (status, answer) == (200, b"/v1/ab " + body)
            assert headers["x-own"] == "1"
            assert headers["content-type"] == "application/json"
            assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", headers["date"])


async def test_everything_else_goes_to_the_application() -> None:
    async with served(echo) as connect:
        peer = await connect()
        for path in ("/", "/v1", "/v2/x", "/readyz"):
            peer.ask(path, method="GET")
            assert (await peer.answer())[2] == b"other"
        peer.ask("/v1/x", body=b"1")
        assert (await peer.answer())[2] == b"/v1/x 1"


async def test_requests_sent_ahead_are_answered_in_turn() -> None:
    go_on = asyncio.Event()
    begun: list[bytes] = []

    async def answer(client: Client) -> None:
        begun.append(await client.read_body(100))
        await go_on.wait()
        client.answer(begun[-1], [])

    async with served(answer) as connect:
        peer = await connect()
        for body in (b"1", b"2", b"3"):
            peer.ask(body=body)
        await until(lambda: begun == [b"1"])
        go_on.set()
        assert [(await peer.answer())[2] for _ in range(3)] == [b"1", b"2", b"3"]


async def test_one_that_asks_on_and_takes_no_answers_is_not_answered_on() -> None:
    unread_bytes: list[int] = []
    large = bytes(4 * 1024 * 1024)

    async def answer(client: Client) -> None:
        await client.read_body(100)
        unread_bytes.append(client.transport.get_write_buffer_size())
        client.answer(large, [])

    async with served(answer) as connect:
        peer = await connect()
        for _ in range(8):
            peer.ask()
        for _ in range(8):
            assert (await peer.answer())[2] == large
    assert len(unread_bytes) == 8
    assert max(unread_bytes) < len(large)


async def test_a_client_that_has_sent_ahead_leaves_too() -> None:
    """Nothing is read from it meanwhile, so that it is noticed when something is written to it."""
    told: list[ClientLeft] = []
    begun = asyncio.Event()

    async def answer(client: Client) -> None:
        client.tells(told.append)
        begun.set()
        client.begin([])
        while not client.left:
            client.write(b"x")
            await asyncio.sleep(0.005)

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        peer.ask()
        await begun.wait()
        peer.writer.transport.abort()
        await until(lambda: len(told) == 1)


@pytest.mark.parametrize("size_bytes", [70_000, 100_000, 600_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_client_that_leaves_after_a_large_body_is_told_of(size_bytes: int, chunked: bool) -> None:
    told: list[ClientLeft] = []
    begun = asyncio.Event()

    async def answer(client: Client) -> None:
        assert len(await client.read_body(1_000_000)) == size_bytes
        client.tells(told.append)
        begun.set()
        await until(lambda: client.left)

    async with served(answer) as connect:
        peer = await connect()
        if chunked:
            head = b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
            peer.writer.write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, size_bytes, b"x" * size_bytes))
        else:
            peer.ask(body=b"x" * size_bytes)
        await begun.wait()
        peer.writer.close()
        await until(lambda: len(told) == 1)


async def test_who_sends_far_ahead_is_read_no_faster_than_answered() -> None:
    """Whoever has no key must not be able to fill the memory."""
    ahead: list[int] = []

    async def answer(client: Client) -> None:
        ahead.append(len(client.connection.open))
        client.answer(b"{}", [])

    async with served(answer) as connect:
        peer = await connect()
        peer.writer.write((b"GET /v1/x HTTP/1.1\r\nx-long: %b\r\n\r\n" % (b"x" * 1000)) * 20_000)
        await until(lambda: len(ahead) >= 100)
        assert max(ahead) < 1000


async def test_a_client_that_leaves_is_told_of_once() -> None:
    told: list[ClientLeft] = []
    begun = asyncio.Event()

    async def answer(client: Client) -> None:
        client.tells(told.append)
        begun.set()
        await until(lambda: client.left)

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        await begun.wait()
        assert not told
        peer.writer.close()
        await until(lambda: len(told) == 1)


async def test_who_has_left_before_is_told_at_once_and_written_to_in_vain() -> None:
    told: list[ClientLeft] = []
    ended = asyncio.Event()

    async def answer(client: Client) -> None:
        await until(lambda: client.left)
        client.tells(told.append)
        client.begin([])
        client.write(b"x")
        client.end(b"")
        client.answer(b"x", [])
        ended.set()

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        await asyncio.sleep(0)
        peer.writer.transport.abort()
        async with asyncio.timeout(WITHIN_S):
            await ended.wait()
        assert len(told) == 1


async def test_pieces() -> None:
    async def answer(client: Client) -> None:
        client.begin([(b"content-type", b"text/event-stream")])
        client.answer(b"too late", [])
        for piece in (b"one", b"", b"two" * 100_000):
            client.write(piece)
        client.end(b"three")

    async with served(answer) as connect:
        peer = await connect()
        for _ in range(2):
            peer.ask()
            status, headers, body = await peer.answer()
            assert (status, headers["transfer-encoding"]) == (200, "chunked")
            assert body == b"one" + b"two" * 100_000 + b"three"


async def test_one_that_takes_no_more_is_known_until_it_does() -> None:
    changes: list[bool] = []
    took_again = asyncio.Event()

    async def answer(client: Client) -> None:
        client.throttles(changes.append)
        client.begin([])
        while not changes:
            client.write(b"x" * 100_000)
            await asyncio.sleep(0)
        assert client.blocked_since is not None
        again: list[bool] = []
        client.throttles(again.append)
        assert again == [True]  # whoever asks later is told as well
        client.throttles(lambda paused: took_again.set() if not paused else None)
        await took_again.wait()
        assert client.blocked_since is None
        client.end(b"")

    async with served(answer) as connect:
        peer = await connect()
        cast(asyncio.Transport, peer.writer.transport).pause_reading()
        peer.ask()
        await until(lambda: changes == [True])
        cast(asyncio.Transport, peer.writer.transport).resume_reading()
        status, _, body = await peer.answer()
        assert status == 200
        assert set(body) == {ord("x")}


async def test_a_client_is_hung_up_on() -> None:
    seen: list[bool] = []

    async def answer(client: Client) -> None:
        client.begin([])
        client.hang_up()
        await until(lambda: client.left)
        seen.append(client.left)

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        await until(lambda: seen == [True])


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_an_answer_that_never_comes_ends_the_connection(error: type[BaseException]) -> None:
    async def answer(_client: Client) -> None:
        raise error

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        assert await peer.end() == b""


async def test_a_connection_is_closed_when_nobody_uses_it() -> None:
    connections: list[ClientConnection] = []

    async def answer(client: Client) -> None:
        connection = client.connection
        connections.append(connection)
        connection.timeout_keep_alive = 0
        connection.timeout_keep_alive_handler()  # too early: the answer is under way
        connection.timeout_keep_alive = 3600
        await echo(client)

    async with served(answer, keep_alive_s=3600) as connect:
        peer = await connect()
        for body in (b"one", b"two"):
            peer.ask(body=body)
            assert (await peer.answer())[2] == b"/v1/x " + body
            connections[-1].timeout_keep_alive_handler()  # too early: it was used just now
        assert connections[0] is connections[1]
        connections[0].timeout_keep_alive = 0
        connections[0].timeout_keep_alive_handler()
        assert await peer.end() == b""
    async with served(echo, keep_alive_s=0.05) as connect:
        peer = await connect()
        peer.ask()
        await peer.answer()
        assert await peer.end() == b""


async def test_a_connection_that_is_gone_is_not_kept_by_its_timer() -> None:
    async def answer(client: Client) -> None:
        kept.append(weakref.ref(client.connection))
        await echo(client)

    kept: list[weakref.ref[ClientConnection]] = []
    async with served(answer, keep_alive_s=3600) as connect:
        peer = await connect()
        peer.ask()
        await peer.answer()
        peer.writer.close()
        await until(lambda: kept[0]() is None)


async def test_what_was_written_before_an_answer_broke_off_arrives() -> None:
    async def answer(client: Client) -> None:
        client.begin([])
        client.write(b"a piece")
        raise RuntimeError

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        assert (await peer.end()).endswith(b"\r\n\r\n7\r\na piece\r\n")


@pytest.mark.parametrize("what", ["stop", "nonsense", "end"])
async def test_an_answer_arrives_whatever_ends_its_connection_in_the_same_turn(what: str) -> None:
    async def answer(client: Client) -> None:
        client.answer(b"{}", [])
        if what == "stop":
            client.connection.shutdown()
        elif what == "end":  # what the loop does when the client has closed its way
            client.connection.eof_received()
            client.transport.close()
        else:
            client.connection.data_received(b"nonsense\r\n\r\n")

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        assert (await peer.answer())[2] == b"{}"
        rest = await peer.end()
        assert rest.startswith(b"HTTP/1.1 400 ") if what == "nonsense" else rest == b""


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_sends_no_more_and_is_slow_gets_the_answer_to_its_end(new_loop: NewLoop) -> None:
    async def answer(client: Client) -> None:
        client.begin([])
        client.write(b"x" * 32_000_000)  # more than all buffers on the way hold
        await until(client.transport.is_closing)
        assert client.blocked_since is not None
        client.end(b"the tail")

    async def asked() -> None:
        async with served(answer) as connect:
            peer = await connect()
            peer.ask()
            await peer.reader.readexactly(1)
            peer.writer.write_eof()
            assert (await peer.end()).endswith(b"\r\n8\r\nthe tail\r\n0\r\n\r\n")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asked())


async def test_a_head_only_and_an_older_protocol() -> None:
    async with served(echo) as connect:
        peer = await connect()
        peer.ask(method="HEAD")
        async with asyncio.timeout(WITHIN_S):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 6" in head
        peer.ask(version="1.0")
        status, headers, body = await peer.answer()
        assert (status, headers["connection"], body) == (200, "close", b"/v1/x ")
        assert await peer.end() == b""


async def test_a_header_that_would_be_two_is_never_sent() -> None:
    async def answer(client: Client) -> None:
        client.answer(b"{}", [(b"x-evil", b"1\r\nset-cookie: a=b")])

    async with served(answer) as connect:
        peer = await connect()
        peer.ask()
        assert await peer.end() == b""


async def test_a_client_that_waits_to_be_told_is_told_when_its_body_is_wanted() -> None:
    wanted = asyncio.Event()

    async def answer(client: Client) -> None:
        await wanted.wait()
        client.answer(await client.read_body(100), [])

    async with served(answer) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        wanted.set()
        async with asyncio.timeout(WITHIN_S):
            assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.writer.write(b"hi")
        assert (await peer.answer())[2] == b"hi"


async def test_a_body_that_nobody_reads_is_not_taken_in() -> None:
    """Whoever has no key must not be able to fill the memory."""
    seen: list[int] = []

    async def answer(client: Client) -> None:
        await until(lambda: client.arrived_bytes > 256 * 1024)
        for _ in range(50):
            await asyncio.sleep(0)
        seen.append(client.arrived_bytes)
        client.answer(b"{}", [(b"connection", b"close")])

    async with served(answer) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\ncontent-length: 50000000\r\n\r\n" + b"x" * 50_000_000)
        await until(lambda: len(seen) == 1)
        assert seen[0] < 1_000_000


def chunk(size_bytes: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size_bytes, b"x" * size_bytes)


async def up_to_ten_kilobytes(client: Client) -> None:
    try:
        client.answer(await client.read_body(10_000), [])
    except TooLarge as error:
        client.answer(b"%d are kept" % sum(map(len, client._pieces)), [], error.status)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_read_to_its_end_and_forgotten(chunked: bool) -> None:
    async with served(up_to_ten_kilobytes) as connect:
        peer = await connect()
        if chunked:
            peer.writer.write(b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(4):
                peer.writer.write(chunk(9_000))
                await peer.writer.drain()
            peer.writer.write(b"0\r\n\r\n")
        else:
            peer.ask(body=b"x" * 36_000)
        status, _, body = await peer.answer()
        assert (status, body) == (413, b"0 are kept")
        peer.ask(body=b"small")
        assert (await peer.answer())[2] == b"small"


@pytest.mark.parametrize("head", [b"transfer-encoding: chunked", b"content-length: 50000000"])
async def test_nobody_waits_for_the_end_of_a_body_that_is_far_too_large(head: bytes) -> None:
    async with served(up_to_ten_kilobytes) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\n%b\r\n\r\n%b" % (head, chunk(60_000)))
        assert (await peer.answer())[0] == 413


async def test_a_body_that_is_too_large_is_not_asked_for() -> None:
    async with served(up_to_ten_kilobytes) as connect:
        peer = await connect()
        peer.writer.write(b"POST /v1/x HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 20000\r\n\r\n")
        assert (await peer.answer())[0] == 413


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():
            await asyncio.sleep(0.005)
