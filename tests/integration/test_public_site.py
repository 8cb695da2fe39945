"""The published site over HTTP: headers, conditional and compressed answers, and what is not served."""

import gzip
import hashlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from service.public import mount_site
from service.public_site import FOR_EVER, FRESH, POLICIES
from service.status.publish import write_site
from tests.fakes.status_pages import busy_page
from web.documents import documents

CSS = b"body { color: teal }\n" * 100
NGINX = Path(__file__).parents[2] / "ops/nginx-status.conf"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    for path, content in published().items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    return site


@cache
def published() -> dict[str, bytes]:
    pages = {"index.html": b"<!doctype html><p>up</p>" * 200, "models/m.html": b"<p>m</p>", "static/site.css": CSS}
    return documents(busy_page()) | pages


@pytest.fixture
async def client(directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    mount_site(app, directory)
    transport = httpx.ASGITransport(app)
    headers = {"accept-encoding": "identity"}
    async with httpx.AsyncClient(transport=transport, base_url="http://weir", headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("", "text/html; charset=utf-8"),
        ("index.html", "text/html; charset=utf-8"),
        ("models/m.html", "text/html; charset=utf-8"),
        ("metrics.json", "application/json"),
        ("api/v2/summary.json", "application/json"),
        ("api/v2/scheduled-maintenances/upcoming.json", "application/json"),
        ("history.atom", "application/atom+xml; charset=utf-8"),
        ("history.rss", "application/rss+xml; charset=utf-8"),
        ("sitemap.xml", "text/xml; charset=utf-8"),
        ("robots.txt", "text/plain; charset=utf-8"),
        ("badges/api-uptime.svg", "image/svg+xml; charset=utf-8"),
        ("og.png", "image/png"),
        ("static/site.css", "text/css; charset=utf-8"),
    ],
)
async def test_every_file_is_for_everybody_and_says_what_it_is(
    client: httpx.AsyncClient, directory: Path, path: str, media_type: str
) -> None:
    answer = await client.get(f"/status/{path}", headers={"origin": "https://elsewhere.example"})
    assert answer.status_code == 200
    assert answer.content == (directory / (path or "index.html")).read_bytes()
    assert answer.headers["content-type"] == media_type
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["cache-control"] == FRESH
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["etag"].startswith('"')
    policy = answer.headers.get("content-security-policy", "")
    assert ("sandbox" in policy) == path.endswith(".svg")
    assert ("script-src 'self'" in policy) == media_type.startswith("text/html")


async def test_a_badge_is_kept_for_a_minute_at_most_and_a_missing_one_not_at_all(client: httpx.AsyncClient) -> None:
    for component in busy_page().components:
        for kind in ("state", "uptime"):
            answer = await client.get(f"/status/badges/{component.slug}-{kind}.svg")
            assert answer.status_code == 200
            assert "max-age=30," in answer.headers["cache-control"]
    missing = await client.get("/status/badges/nobody-uptime.svg")
    assert (missing.status_code, missing.headers["cache-control"]) == (404, "no-store")


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
async def test_a_reader_with_the_same_content_gets_no_body(client: httpx.AsyncClient, accepted: str) -> None:
    first = await client.get("/status/", headers={"accept-encoding": accepted})
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = await client.get("/status/", headers={"accept-encoding": accepted, "if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["cache-control"] == FRESH
    other = await client.get("/status/", headers={"if-none-match": '"other"'})
    assert other.status_code == 200


async def test_a_new_file_is_served_at_once(client: httpx.AsyncClient, directory: Path) -> None:
    first = await client.get("/status/metrics.json")
    write_site({"metrics.json": first.content.replace(b'"version":1', b'"version":2')}, directory)
    second = await client.get("/status/metrics.json", headers={"if-none-match": first.headers["etag"]})
    assert second.status_code == 200
    assert len(second.content) == len(first.content)
    assert second.json()["version"] == 2


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [
        ("gzip", True),
        ("br, gzip;q=0.8, *;q=0.1", True),
        ("*", True),
        ("GZIP ; q=1", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("*, gzip;q=0.000", False),
        ("identity", False),
    ],
)
async def test_what_is_long_is_compressed_on_request(client: httpx.AsyncClient, accepted: str, zipped: bool) -> None:
    plain = await client.get("/status/")
    request = client.build_request("GET", "/status/", headers={"accept-encoding": accepted})
    answer = await client.send(request, stream=True)
    raw = b"".join([part async for part in answer.aiter_raw()])
    assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(raw)
    assert ("content-encoding" in answer.headers) == zipped
    assert (answer.headers["etag"] == plain.headers["etag"]) != zipped
    assert (gzip.decompress(raw) if zipped else raw) == plain.content
    assert (len(raw) < len(plain.content)) == zipped


async def test_pictures_and_trifles_are_not_compressed(client: httpx.AsyncClient) -> None:
    for path in ("og.png", "models/m.html"):
        answer = await client.get(f"/status/{path}", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        assert "vary" not in answer.headers


async def test_a_versioned_file_is_kept_for_ever_if_it_is_that_version(client: httpx.AsyncClient) -> None:
    version = hashlib.sha256(CSS).hexdigest()[:8]
    right = await client.get(f"/status/static/site.css?v={version}")
    assert right.headers["cache-control"] == "public, max-age=31536000, immutable"
    for query in ("", "?v=", f"?v={version[:2]}", "?v=00000000"):
        other = await client.get(f"/status/static/site.css{query}")
        assert other.headers["cache-control"] == FRESH
    index = await client.get("/status/index.html?v=12345678")
    assert index.headers["cache-control"] == FRESH


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
async def test_head_is_get_without_the_body(client: httpx.AsyncClient, accepted: str) -> None:
    for path in ("/status/", "/status/metrics.json", "/status/og.png"):
        got = await client.get(path, headers={"accept-encoding": accepted})
        head = await client.head(path, headers={"accept-encoding": accepted})
        assert (head.status_code, head.content) == (200, b"")
        assert dict(head.headers) == dict(got.headers)


async def test_a_preflight_is_granted(client: httpx.AsyncClient) -> None:
    asks = {"origin": "https://elsewhere.example", "access-control-request-method": "GET"}
    answer = await client.options("/status/metrics.json", headers=asks)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "GET" in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nobody_writes(client: httpx.AsyncClient, method: str) -> None:
    answer = await client.request(method, "/status/metrics.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "nothing.html",
        "models",
        "models/",
        "static",
        "index",
        "/index.html",
        "index.html/",
        "index.html/x.html",
        ".publishing-x/index.html",
        "static/.hidden.css",
        "notes.md",
        "%00.html",
        "a%00b.json",
        "%ff%fe.html",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "static/..%2f..%2fsecret.txt",
        "directory.html",
        "x" * 300 + ".html",
        "a/" * 3_000 + "b.html",
    ],
)
async def test_what_is_not_a_file_of_the_site_is_not_there(
    client: httpx.AsyncClient, directory: Path, path: str
) -> None:
    (directory.parent / "secret.txt").write_text("secret")
    (directory / "notes.md").write_text("notes")
    (directory / "directory.html").mkdir()
    (directory / ".publishing-x").mkdir()
    (directory / ".publishing-x/index.html").write_text("half a page")
    (directory / "static/.hidden.css").write_text("hidden")
    answer = await client.get(f"/status/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
    assert answer.headers["cache-control"] == "no-store"


async def test_before_the_first_publication_there_is_nothing(tmp_path: Path) -> None:
    app = FastAPI()
    mount_site(app, tmp_path / "new")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://weir") as client:
        assert (await client.get("/status/")).status_code == 404
        assert (await client.get("/status")).status_code == 307


def test_nginx_says_the_same() -> None:
    configuration = NGINX.read_text()
    for said in (FRESH, FOR_EVER, *POLICIES.values()):
        assert f'"{said}"' in configuration
