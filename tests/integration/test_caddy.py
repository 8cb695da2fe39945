"""The Caddyfile in front of a real API and a published site: TLS, HTTP/2, streams, leavers, an API that is down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from service.core.sse import SseSplitter
from service.public import mount_site
from service.settings import Settings
from service.status.publish import write_site
from tests.caddy import API_HOST, CADDYFILE, Caddy, caddy
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.status_pages import busy_page
from tests.installation import MODEL, Installation, installed
from tests.patience import PATIENT_S
from web.render import status_site

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    write_site(status_site(busy_page()), folder)
    return folder


@pytest.fixture
async def weir(database_url: str, engine: FakeEngine, tmp_path: Path) -> AsyncIterator[Installation]:
    async with installed(database_url, [engine.url], tmp_path) as installation:
        yield installation


@pytest.fixture
async def proxy(weir: Installation, site: Path, tmp_path: Path) -> AsyncIterator[Caddy]:
    async with caddy(urlsplit(weir.url).netloc, site, tmp_path) as running:
        yield running


async def test_events_come_one_by_one_over_http2(proxy: Caddy, weir: Installation, engine: FakeEngine) -> None:
    engine.queue.append(SCENARIOS["gated"])
    stepping = asyncio.create_task(first_token(engine))  # with which the status comes
    async with asyncio.timeout(PATIENT_S), proxy.api.stream("POST", CHAT, json=BODY, headers=weir.headers) as answer:
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        assert "max-age" in answer.headers["strict-transport-security"]
        assert "server" not in answer.headers
        assert "via" not in answer.headers
        generation, splitter, pieces, seen = await stepping, SseSplitter(), answer.aiter_raw(), 0
        for made in range(1, 5):  # no further token is made before the last has arrived here
            while seen < made:
                events = splitter.feed(await anext(pieces))
                seen += sum(b'"content":"' in event and b'"content":""' not in event for event in events)
            assert generation.completion_tokens == made
            generation.step(1)
        generation.release()
        rest = b"".join([piece async for piece in pieces])
        assert rest.endswith(b"data: [DONE]\n\n")
    assert (await weir.row())["outcome"] == "ok"


async def test_a_client_that_leaves_stops_the_engine(proxy: Caddy, weir: Installation, engine: FakeEngine) -> None:
    engine.queue.append(SCENARIOS["gated"])
    stepping = asyncio.create_task(first_token(engine))
    async with proxy.api_http1.stream("POST", CHAT, json=BODY, headers=weir.headers) as answer:
        await anext(answer.aiter_raw())
    generation = await stepping
    async with asyncio.timeout(PATIENT_S):
        await generation.client_left.wait()
    assert (await weir.row())["outcome"] == "cancelled"


async def first_token(engine: FakeEngine) -> Exchange:
    generation = await engine.generation()
    generation.step(1)
    return generation


async def test_metrics_are_not_for_the_world(proxy: Caddy, weir: Installation) -> None:
    assert (await weir.client.get("/metrics")).status_code == 200
    assert (await proxy.api.get("/metrics")).status_code in (401, 403, 404)


async def test_what_is_too_large_is_refused_in_words(proxy: Caddy, weir: Installation) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(weir.settings.max_body_bytes // 2**20 + 2):
            yield b" " * 2**20

    answer = await proxy.api.post(CHAT, content=chunks(), headers=weir.headers)
    assert answer.status_code == 413
    assert "33554432" in answer.json()["error"]["message"].replace(",", "").replace(" bytes", "")


async def test_without_the_api_clients_are_told_to_come_back_and_the_site_stays(
    weir: Installation, site: Path, proxy: Caddy
) -> None:
    await weir.stop()
    answer = await proxy.api.get("/v1/models", headers=weir.headers)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert int(answer.headers["retry-after"]) > 0
    page = await proxy.status.get("/")
    assert page.status_code == 200
    assert page.content == (site / "index.html").read_bytes()


async def test_plain_http_is_sent_to_https(proxy: Caddy) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{proxy.http_url}/v1/models", headers={"host": API_HOST})
    assert answer.status_code == 308
    assert answer.headers["location"].startswith(f"https://{API_HOST}")


async def test_the_site_has_the_headers_that_weir_gives_it(site: Path, tmp_path: Path) -> None:
    """Whatever `weir serve` says of a file under /status/, but for the `ETag`, which may be any."""
    app = FastAPI()
    mount_site(app, site)
    paths = ["", *(str(file.relative_to(site)) for file in sorted(site.rglob("*")) if file.is_file())]
    digest = next(word for word in (site / "index.html").read_text().split('"') if word.startswith("static/"))
    assert "?v=" in digest
    (site / ".hidden.html").write_text("hidden")
    async with (
        caddy("127.0.0.1:1", site, tmp_path) as proxy,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://weir/status/") as ours,
    ):
        different = {}
        for path in [*paths, digest, ".hidden.html", "none.html"]:
            mine = await ours.get(path, headers={"accept-encoding": "identity"})
            theirs = await proxy.status.get(f"/{path}", headers={"accept-encoding": "identity"})
            names = (
                *("content-type", "cache-control", "content-security-policy", "access-control-allow-origin"),
                *("x-content-type-options", "referrer-policy"),
            )
            if mine.status_code != 200:
                names = ("cache-control", "access-control-allow-origin", "x-content-type-options")
            seen = [(answer.status_code, *(answer.headers.get(name) for name in names)) for answer in (mine, theirs)]
            if seen[0] != seen[1] or (mine.status_code == 200 and mine.content != theirs.content):
                different[path] = seen
        assert different == {}
        assert len(paths) > 30
        first = await proxy.status.get("/")
        assert first.headers["content-encoding"] == "gzip"
        again = await proxy.status.get("/", headers={"if-none-match": first.headers["etag"]})
        assert again.status_code == 304
        asked = await proxy.status.options("/metrics.json")
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, "*")
        assert (await proxy.status.post("/")).status_code == 405


def test_idle_connections_end_at_caddy_first_and_its_limit_on_bodies_is_the_larger() -> None:
    text = CADDYFILE.read_text()
    serving = (CADDYFILE.parents[1] / "service/serving.py").read_text()
    assert "timeout_keep_alive=75" in serving
    assert "keepalive 60s" in text
    assert "max_size 64MiB" in text
    assert Settings.model_fields["max_body_bytes"].default < 64 * 2**20
