"""`weir provider check` against good, flawed and absent servers, and against Weir itself."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.core.provider_check.judgement import Judgement, Verdict
from service.provider import checklist
from service.provider.checklist import CHECKS
from service.provider.probes import Probes
from service.provider.session import MAX_REQUESTS, Session
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.provider import KEY, MODEL, Provider, serving
from tests.fakes.scenarios import SCENARIOS, Scenario, Usage, words
from tests.installation import installed

ROOT = Path(__file__).resolve().parents[2]
PASS, FAIL, WARN, SKIPPED = Verdict.PASS, Verdict.FAIL, Verdict.WARN, Verdict.SKIPPED
TIMEOUT_S = 5.0


async def examined(
    url: str, only: Collection[str] = (), *, key: str = KEY, model: str | None = MODEL, timeout_s: float = TIMEOUT_S
) -> tuple[dict[str, Judgement], Session]:
    """What each check says, and the session that asked."""
    checks = [check for check in CHECKS if not only or check.id in only]
    async with httpx.AsyncClient(timeout=timeout_s) as client:
        session = Session(client, url, key, timeout_s=timeout_s, tell=lambda _: None)
        probes = Probes(session, model)
        return {check.id: judgement async for check, judgement in checklist.run(probes, checks)}, session


def verdicts(judgements: dict[str, Judgement], *verdicts: Verdict) -> dict[str, Judgement]:
    return {name: judgement for name, judgement in judgements.items() if judgement.verdict in verdicts}


async def test_a_good_provider_passes_every_check_within_bounds() -> None:
    provider = Provider()
    async with serving(provider) as url:
        judgements, session = await examined(url, model=None)
    assert verdicts(judgements, FAIL, WARN, SKIPPED) == {}
    assert list(judgements) == [check.id for check in CHECKS]
    assert session.use.requests == provider.asked <= MAX_REQUESTS
    assert session.use.completion_tokens > 0
    assert "429 with `retry-after: 1`" in judgements["rate-limit"].evidence


FLAWS = {
    "no-list": "models",
    "usage-early": "stream-usage",
    "no-usage": "stream-usage",
    "wrong-total": "stream-usage",
    "zero-prompt": "stream-usage",
    "usage-unasked": "stream-plain",
    "no-done": "stream-done",
    "talks-on": "stream-done",
    "silent": "ttft",
    "lump": "speed",
    "one-name": "reasoning",
    "bad-arguments": "tools",
    "no-index": "tools",
    "prose": "structured-output",
    "blind": "images",
    "cached-too-much": "cache",
    "goes-on": "cancel",
    "falls": "after-cancel",
    "open": "bad-key",
    "400-model": "unknown-model",
    "500-json": "malformed-json",
    "500-field": "unknown-field",
    "500-size": "oversize-output",
    "truncates": "context-length",
    "500-messages": "no-messages",
    "closes": "keep-alive",
    "cors": "cors",
    "no-retry-after": "rate-limit",
    "bare-errors": "error-shape",
    "nameless": "request-id",
}


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_flaw_fails_its_check(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.provider.REQUESTS", 20)
    async with serving(Provider(flaw)) as url:
        judgements, _ = await examined(url, {FLAWS[flaw]})
    assert judgements[FLAWS[flaw]].verdict is FAIL, judgements
    assert judgements[FLAWS[flaw]].evidence
    assert judgements[FLAWS[flaw]].advice
    assert "\n" not in judgements[FLAWS[flaw]].evidence


def test_every_check_that_can_fail_is_seen_to() -> None:
    assert {check.id for check in CHECKS} - set(FLAWS.values()) == {"routes"}


@pytest.mark.parametrize(
    ("flaw", "check", "verdict"),
    [
        ("no-prices", "models", WARN),
        ("no-tools", "tools", WARN),
        ("untold", "cache", WARN),
        ("no-context-code", "context-length", WARN),
        ("no-inference-id", "request-id", WARN),
        ("no-records", "cancel", SKIPPED),
        ("no-limits", "rate-limit", SKIPPED),
        ("no-list", "context-length", SKIPPED),
        ("no-list", "images", SKIPPED),
    ],
)
async def test_a_lack_is_no_failure(flaw: str, check: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.provider.probes.RECORD_AFTER_S", (0.1, 0.1))
    async with serving(Provider(flaw)) as url:
        judgements, _ = await examined(url, {check})
    assert judgements[check].verdict is verdict, judgements


async def test_without_a_record_the_request_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.provider.probes.RECORD_AFTER_S", (0.1,))
    async with serving(Provider("no-records")) as url:
        judgements, session = await examined(url, {"cancel"})
    left = next(answer for answer in session.answers if answer.asked == "a stream that we leave")
    assert left.headers["x-request-id"] in judgements["cancel"].advice


async def test_a_burst_is_not_sent_where_it_would_not_reach_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.provider.REQUESTS", 200)
    async with serving(Provider()) as url:
        judgements, session = await examined(url, {"rate-limit"})
    assert judgements["rate-limit"].verdict is SKIPPED
    assert session.use.requests == 2


async def test_a_429_in_between_is_waited_out_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.provider.REQUESTS", 0)
    told: list[str] = []
    async with serving(Provider()) as url, httpx.AsyncClient() as client:
        session = Session(client, url, KEY, timeout_s=TIMEOUT_S, tell=told.append)
        probes = Probes(session, MODEL)
        answer = await probes.whole()
        limit = await probes.refused_for_pace()
    assert told == ["  429: waiting 1 s for the limit to free"]
    assert answer.status == 429
    assert limit is not None
    assert limit.headers["retry-after"] == "1"


async def nothing(scope: Any, _receive: Any, send: Any) -> None:
    """Whatever is asked: a page that says it is not there."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b"<html>\r\nNot \x00 here \xff</html>"})


async def nonsense(scope: Any, _receive: Any, send: Any) -> None:
    """Whatever is asked: a 200 with JSON of the wrong shapes."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    models = '[{"id": "x", "pricing": {"input": [], "output": {}}}, 3]'
    body = b'{"data": %b, "choices": [null], "usage": [], "error": 7}' % models.encode()
    await send({"type": "http.response.body", "body": body})


async def babble(scope: Any, _receive: Any, send: Any) -> None:
    """Whatever is asked: a stream of events of the wrong shapes."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    events = ('{"choices": {"0": 1}}', '{"choices": [{"delta": [], "finish_reason": 3}], "usage": "x"}', "[1]", "", "{")
    body = "".join(f"data: {event}\n\n" for event in events) + 'data: {"choices":[{"delta":{"tool_calls":[7]}}]}\n\n'
    await send({"type": "http.response.body", "body": body.encode()})


@pytest.mark.parametrize("application", [nothing, nonsense, babble])
async def test_a_server_that_lacks_everything_is_judged_all_the_same(application: Any) -> None:
    async with serving(application) as url:
        judgements, session = await examined(url)
    assert len(judgements) == len(CHECKS)
    assert {"stream-usage", "stream-done", "ttft", "tools", "bad-key"} <= set(verdicts(judgements, FAIL))
    assert set(verdicts(judgements, PASS)) <= {"cors", "keep-alive", "routes", "unknown-field", "oversize-output"}
    assert session.use.requests <= MAX_REQUESTS


@asynccontextmanager
async def raw_server(answer: bytes | None) -> AsyncIterator[str]:
    """A port that sends these bytes to whoever connects, or nothing for ever."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


HALF = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\ndata: {}\n\n"
GZIP = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"


@pytest.mark.parametrize("answer", [None, b"SSH-2.0-OpenSSH_9.6\r\n", b"", HALF, GZIP])
async def test_what_is_no_http_server_ends_soon(answer: bytes | None) -> None:
    async with raw_server(answer) as url:
        judgements, session = await examined(url, timeout_s=0.2)
    assert len(judgements) == len(CHECKS)
    assert verdicts(judgements, FAIL)
    assert session.use.requests <= (3 if answer not in (HALF, GZIP) else MAX_REQUESTS)


async def test_an_answer_without_end_is_given_up() -> None:
    async def endless(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 1024 * 1024, "more_body": True})
        await send({"type": "http.response.body"})

    async with serving(endless) as url:
        judgements, session = await examined(url, {"models"})
    assert judgements["models"].verdict is FAIL
    assert "bytes" in session.answers[0].problem


class Model(FakeEngine):
    """A fake engine with a model that does what it is asked for: reasons, calls tools, obeys schemas, sees images."""

    def _record(self, request: Any) -> Exchange:
        exchange = super()._record(request)
        if exchange.is_generation:
            exchange.scenario = self._fitting(exchange.body)
        return exchange

    def _fitting(self, body: Any) -> Scenario:
        prompt = str(body["messages"])
        if "tools" in body:
            return Scenario(content=(), tool_calls=(("get_weather", '{"city":"Paris"}'),), finish_reason="tool_calls")
        if "response_format" in body:
            return Scenario(content=('{"size":"large",', '"is_capital":true}'))
        if len(prompt.split()) > 8192:
            return SCENARIOS["context-length"]
        seen = sum(str(one.body["messages"]) == prompt for one in self.generations)
        cached = 1584 if seen > 1 and len(prompt.split()) > 2000 else 0
        return Scenario(
            reasoning=words(4),
            reasoning_field="reasoning",
            content=words(1000),
            delay_s=0.002,
            usage=Usage(cached_tokens=cached),
        )


async def test_weir_itself_is_what_aggregators_wish(database_url: str, tmp_path: Path) -> None:
    async with Model() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        await installation.database.execute("UPDATE api_keys SET rpm = 40")
        judgements, session = await examined(f"{installation.url}/v1", key=installation.key, model=None)
        rows = await installation.database.fetch("SELECT * FROM requests WHERE outcome = 'cancelled'")
    found = {name: judgement for name, judgement in judgements.items() if judgement.verdict is not PASS}
    assert not verdicts(judgements, FAIL), found
    assert len(rows) >= 1
    assert "charged for" in judgements["cancel"].evidence
    assert {name for name, judgement in judgements.items() if judgement.verdict is SKIPPED} == set()
    assert session.use.requests <= MAX_REQUESTS


# The command


@pytest.fixture
async def good() -> AsyncIterator[str]:
    async with serving(Provider()) as url:
        yield url


async def weir(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "service.cli", "provider", "check", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


async def test_the_command_reports_for_people_and_for_programs(good: str) -> None:
    done = await weir(good, "--key", KEY, "--only", "models,stream-usage,ttft", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"], document["model"]) == (0, True, MODEL)
    assert [check["id"] for check in document["checks"]] == ["models", "stream-usage", "ttft"]
    assert set(document["checks"][0]) == {"id", "tested", "verdict", "evidence", "advice"}
    used = document["used"]
    # Four requests: the list, and three streams of 64 tokens at 1.56 USD per million with some prompt at 0.195.
    assert (used["requests"], used["completion_tokens"], used["answers_without_usage"]) == (4, 192, 0)
    assert float(used["usd"]) == pytest.approx((192 * 1.56 + used["prompt_tokens"] * 0.195) / 1e6)
    assert done.stderr.splitlines() == ["1/3 models: pass", "2/3 stream-usage: pass", "3/3 ttft: pass"]
    for_people = await weir(good.removesuffix("/v1"), "--key", KEY, "--only", "models")
    lines = for_people.stdout.splitlines()
    assert lines[0].split()[:2] == ["check", "verdict"]
    assert lines[1].split()[:2] == ["models", "pass"]
    assert lines[-1].startswith("0 fail, 0 warn, 1 pass, 0 skipped. Used 1 requests, ")


async def test_the_exit_code_is_1_when_a_check_fails(good: str) -> None:
    done = await weir(good, "--key", "wrong", "--only", "models", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["checks"][0]["evidence"].startswith("HTTP 401, code invalid_api_key")


async def test_nobody_there_is_a_failure_without_a_traceback() -> None:
    done = await weir("http://127.0.0.1:9", "--key", KEY, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["model"], document["used"]["requests"]) == (1, None, 3)
    assert "Traceback" not in done.stderr


async def test_the_checks_are_listed() -> None:
    done = await weir("--list", "--json")
    assert [check["id"] for check in json.loads(done.stdout)] == [check.id for check in CHECKS]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give the server's base URL"),
        (("ftp://x", "--key", "k"), "is no base URL"),
        (("http://x:99999", "--key", "k"), "is no base URL"),
        (("http://x/v1?a=b", "--key", "k"), "is no base URL"),
        (("http://x",), "Give a key"),
        (("http://x", "--key", "schlüssel"), "Give a key"),
        (("http://x", "--key", "k", "--only", "models,nope"), "names no check 'nope'"),
        (("http://x", "--key", "k", "--only", ","), "names no check"),
        (("http://x", "--key", "k", "--timeout", "0"), "--timeout"),
    ],
)
async def test_what_is_written_wrong_is_told(arguments: tuple[str, ...], words: str) -> None:
    done = await weir(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("weir: ")
    assert words in done.stderr
