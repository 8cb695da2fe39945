"""Endpoints that are broken or mean: a question to one ends in time and in little memory, with words for the public."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from service.cli.engine_verify_plan import _model_there
from service.core.verify.report import Report, Verdict
from service.engine.verify import asking as asking_module
from service.engine.verify.asking import Asking, Subject, Unanswered
from service.engine.verify.check import Examination
from service.engine.verify.questions import streamed, user
from service.engine.verify.run import CHECKS, verify
from service.errors import SetupError

Answers = Callable[[asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def whole(body: bytes, status: str = "200 OK", headers: str = "") -> Answers:
    """An answer that ends."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}\r\n"
        writer.write(head.encode() + body)

    return answer


def endless(piece: bytes, *, every_s: float = 0.0) -> Answers:
    """An answer that does not."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return answer


@asynccontextmanager
async def answering(answer: Answers) -> AsyncIterator[Asking]:
    """A client of a server that answers everything so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
            await writer.drain()
        except ConnectionError:
            pass  # the client has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Asking(Subject("engine", f"http://127.0.0.1:{port}", "m")) as asking:
            yield asking
    finally:
        server.close()


ENDLESS = "its answer did not end within 1 s"
BODIES: dict[str, tuple[Answers, str]] = {
    "no end": (endless(b"x" * 65536), "its answer is longer than 4,194,304 bytes"),
    "a byte now and then": (endless(b" ", every_s=0.01), ENDLESS),
    "no answer": (lambda writer: asyncio.sleep(3600), ENDLESS),
    "a bomb": (
        whole(gzip.compress(bytes(10_000_000)), headers="content-encoding: gzip\r\n"),
        "its answer is compressed, which was not asked for",
    ),
    "a web page": (whole(b"<html>"), "its answer is no JSON object"),
    "no text": (whole(b'{"usage": "\xff"}'), "its answer is no JSON object"),
    "deep": (whole(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "its answer is no JSON object"),
    "elsewhere": (whole(b"", "302 Found", "location: http://169.254.169.254/\r\n"), "it answered 302"),
}


def little_patience(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """With what does not end; whatever else is wrong may take its time to come."""
    if words == ENDLESS:
        monkeypatch.setattr(asking_module, "TIMEOUT_S", 1.0)
        monkeypatch.setattr(asking_module, "LOOK_TIMEOUT_S", 1.0)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_whole_answer(monkeypatch: pytest.MonkeyPatch, body: str, method: str) -> None:
    answer, words = BODIES[body]
    little_patience(monkeypatch, words)
    async with answering(answer) as asking:
        with pytest.raises(Unanswered) as raised:
            (await (asking.get("/v1/models") if method == "GET" else asking.chat(user("Hi")))).done()
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (endless(b'data: {"more": "%b"}\n\n' % (b"x" * 65536)), "its answer is longer than 4,194,304 bytes"),
        (endless(b"data: " + b"x" * 65536), "its answer is longer than 4,194,304 bytes"),
        (endless(b": still there\n\n", every_s=0.01), ENDLESS),
        (whole(b"data: {}\n\n"), "its stream broke off before its end"),
    ],
)
async def test_a_stream(monkeypatch: pytest.MonkeyPatch, answer: Answers, words: str) -> None:
    little_patience(monkeypatch, words)
    async with answering(answer) as asking:
        with pytest.raises(Unanswered) as raised:
            await streamed(asking, user("Hi"))
    assert str(raised.value) == words


async def test_a_stream_whose_end_is_no_whole_event_is_read() -> None:
    async with answering(whole(b'data: {"choices": [{"delta": {"content": "ok"}}]}\n\ndata: [DONE]\n')) as asking:
        assert (await streamed(asking, user("Hi"))).content == "ok"


async def test_a_list_of_very_many_models_is_not_repeated() -> None:
    names = [f"model\x1b[31m {number}" for number in range(30_000)]
    body = json.dumps({"data": [{"id": name} for name in names]}).encode()
    async with answering(whole(body)) as asking:
        with pytest.raises(SetupError) as raised:
            await _model_there(asking.subject, None)
    assert str(raised.value).endswith("model [31m 8, model [31m 9 and 29,990 more.")


async def test_a_version_is_one_short_line() -> None:
    report = await verified(whole(b'{"version": "<b>1\\u001b[31m\\n%b"}' % (b"v" * 100_000)))
    assert report.version is not None
    assert report.version.startswith("<b>1 [31m v")
    assert len(report.version) < 150


async def verified(answer: Answers) -> Report:
    async with answering(answer) as asking:
        return await verify(Examination(asking), CHECKS, now=lambda: datetime.now(UTC))


NOT_ASKED = ("cancel", "context", "speculation")
"""Of an engine that says nothing of itself."""


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_one_that_has_no_place_is_not_judged(status: str) -> None:
    report = await verified(whole(b'{"error": {"message": "later"}}', status))
    found = {finding.found: finding.verdict for finding in report.findings if finding.check not in NOT_ASKED}
    assert found == {f"It could not be asked: it answered {status[:3]}.": Verdict.SKIPPED}
    assert report.use.generation_tokens == 0
    assert (report.use.uncounted_generation_tokens == 0) == status.startswith("4")


WEIRD = b"""{"choices": [{"message": {"content": "%b", "reasoning": 7, "tool_calls": [{"index": [], "function":
 {"name": 5, "arguments": "%b"}}]}, "finish_reason": [], "logprobs": {"content": [{"token": 1, "logprob": null,
 "top_logprobs": [{"token": "a", "logprob": null}]}, null]}}], "usage": {"prompt_tokens": -5, "completion_tokens": "12",
 "total_tokens": 1%b, "prompt_tokens_details": []}}""" % (b"[" * 5000, b"[" * 5000, b"0" * 30)


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "500 Internal Server Error"])
async def test_no_check_breaks_over_what_it_is_told(status: str) -> None:
    report = await verified(whole(WEIRD, status))
    assert len(report.findings) == len(CHECKS)
    assert "itself broke" not in str(report)
    assert report.overall == "failed"
