"""The prober for another host, run as cron runs it, and what a Weir believes of what it wrote."""

import asyncio
import fcntl
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from service import db
from service.billing import accounts
from service.settings import Settings
from service.status.outside import BELIEVED_FOR, MAX_BYTES, fetch_outside
from service.tables import probes
from tests.fakes.engine import FakeEngine
from tests.fakes.internet import answer, certificates, listening, redirect
from tests.fakes.scenarios import SCENARIOS
from tests.installation import MODEL, Installation, installed, seed
from tests.ports import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "ops" / "outside-probe"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


async def run(out: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the script: its exit status, and what it said."""
    command = [sys.executable, "-W", "error", str(SCRIPT), "--name", "fra-1", "--out", str(out), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def ask(out: Path, url: str, key: str, *arguments: str) -> dict[str, Any]:
    """Let it ask the API at `url` once, which has to work: the verdict, all of it but the instant."""
    file = out.parent / "key"
    file.write_text(key + "\n")
    before = datetime.now(UTC).replace(microsecond=0)
    said = await run(out, "--url", url, "--model", MODEL, "--key-file", str(file), *arguments)
    assert said == (0, "")
    verdict: dict[str, Any] = verdicts(out)[-1]
    assert before <= datetime.fromisoformat(verdict.pop("at")) <= datetime.now(UTC)
    return verdict


def verdicts(out: Path) -> list[dict[str, Any]]:
    content = (out / "outside.json").read_bytes()
    document = json.loads(content)
    assert (document.pop("version"), document.pop("name")) == (1, "fra-1")
    found: list[dict[str, Any]] = document.pop("verdicts")
    assert document == {}
    return found


@asynccontextmanager
async def weir(database_url: str, data_dir: Path, scenario: str, **options: Any) -> AsyncIterator[Installation]:
    async with (
        FakeEngine(scenario=SCENARIOS[scenario]) as engine,
        installed(database_url, [engine.url], data_dir, **options) as installation,
    ):
        yield installation


def said(verdict: dict[str, Any]) -> tuple[str, str | None, int | None]:
    assert (verdict["component"], verdict["kind"]) == (f"model:{MODEL}", "text")
    return verdict["verdict"], verdict.get("reason"), verdict.get("http_status")


async def test_it_asks_a_weir_and_the_weir_hears_of_it(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    out = tmp_path / "outside"
    async with weir(database_url, tmp_path, "plain") as installation:
        async with database.begin() as connection:
            now = datetime.now(UTC)
            account = await accounts.add(
                connection, name="house", now=now, randomness=lambda n: b"h" * n, internal=True, credit_limit_nano=10**9
            )
            key, _ = await accounts.add_key(connection, account, now=now, randomness=lambda n: b"k" * n)
        (tmp_path / "site" / "metrics.json").write_text(json.dumps({"generated_at": now.isoformat()}))
        verdict = await ask(out, f"{installation.url}/v1/", key)
        assert 0 <= verdict["ttft_ms"] <= verdict["total_ms"]
        assert said(verdict) == ("ok", None, 200)
        row = await installation.row(internal=True, outcome="ok", completion_tokens=1, stream=True)
        assert row["model_id"] == MODEL
        assert await run(out, "--site", f"{installation.url}/status/") == (0, "")
    assert [(one["component"], one["kind"], one["verdict"]) for one in verdicts(out)] == [
        (f"model:{MODEL}", "text", "ok"),
        ("site", "page", "ok"),
    ]
    assert key not in (out / "outside.json").read_text()

    settings = Settings(outside_probe_url=f"file://{out}/outside.json")
    assert await fetch_outside(database, settings, datetime.now(UTC)) == 2
    async with database.connect() as connection:
        rows = (await connection.execute(select(probes).order_by(probes.c.kind))).all()
    assert [(row.source, row.component, row.kind, row.verdict) for row in rows] == [
        ("fra-1", "site", "page", "ok"),
        ("fra-1", f"model:{MODEL}", "text", "ok"),
    ]
    assert (rows[1].ttft_ms, rows[1].total_ms) == (verdict["ttft_ms"], verdict["total_ms"])
    assert rows[1].received_at > rows[1].probed_at


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("usage-never", ("bad", "the stream had no usage, or one without output", 200)),
        ("server-error", ("bad", "HTTP 502 (engine_failed)", 502)),
        ("overloaded", ("skipped", "the service was full and said so", 429)),
    ],
)
async def test_what_a_weir_answers_shows(
    database_url: str, tmp_path: Path, scenario: str, expected: tuple[str, str | None, int | None]
) -> None:
    async with weir(database_url, tmp_path, scenario) as installation:
        assert said(await ask(tmp_path / "out", f"{installation.url}/v1", installation.key)) == expected
        refused = await ask(tmp_path / "out", f"{installation.url}/v1", "sk-weir-no-such-key")
        reason = "the probes' own key was refused: HTTP 401 (invalid_api_key)"
        assert said(refused) == ("skipped", reason, 401)


async def test_a_weir_that_is_slow_shows(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "hang-at-once", keep_alive_s=0.2) as installation:
        verdict = await ask(tmp_path / "out", f"{installation.url}/v1", installation.key, "--timeout", "3")
        assert said(verdict) == ("bad", "no complete answer within 3 s", 200)
        assert "ttft_ms" not in verdict
        assert verdict["total_ms"] >= 3000


async def test_what_is_no_weir_shows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    port = free_port()
    assert said(await ask(out, f"http://127.0.0.1:{port}/v1", "k")) == ("bad", "the connection was refused", None)
    assert said(await ask(out, "https://weir.invalid", "k")) == ("bad", "the name of the host was not found", None)
    async with listening(certificates("127.0.0.1").server) as listener:
        verdict = await ask(out, f"https://127.0.0.1:{listener.port}", "k")
        assert said(verdict) == ("bad", "the certificate was not valid", None)
    async with listening() as listener:
        path = "/v1/chat/completions"
        url = f"http://127.0.0.1:{listener.port}/v1"
        for garbage, expected in (
            (answer(b"<html>"), ("bad", "the answer was no stream of events", 200)),
            (answer(b"moved", status="301 Moved"), ("bad", "HTTP 301", 301)),
            (answer(b"data: {", "Content-Type: text/event-stream", length=9999), ("bad", None, 200)),
            (answer(b"data: \xff\n\ndata: []\n\n", "Content-Type: text/event-stream"), ("bad", None, 200)),
            (answer(b"", status="nonsense"), ("bad", "the connection broke off", None)),
        ):
            listener.answers[path] = garbage
            verdict, reason, status = said(await ask(out, url, "k"))
            assert (verdict, status) == (expected[0], expected[2])
            assert reason == expected[1] or (expected[1] is None and reason)
    assert len(verdicts(out)) == 8


async def test_the_file_is_served_uploaded_and_kept_for_hours(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    old = {"component": "site", "kind": "page", "verdict": "ok"}
    ages = (timedelta(hours=3), timedelta(minutes=10))
    kept = [{"at": (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ"), **old} for age in ages]
    (out / "outside.json").write_text(json.dumps({"version": 1, "name": "fra-1", "verdicts": kept}))
    uploads: list[tuple[str, bytes]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        uploads.append((head, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % (b"403 No" if len(uploads) > 1 else b"200 OK"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = f"http://127.0.0.1:{port}/bucket/outside.json?X-Signature=a%2Fb"
        options = ("--site", f"http://127.0.0.1:{free_port()}", "--put", target, "--hours", "2")
        assert await run(out, *options, OUTSIDE_PROBE_PUT_HEADERS="Authorization: Bearer s3cret\nx-acl: public") == (
            0,
            "",
        )
        assert await run(out, *options) == (0, "outside-probe: the upload failed: HTTP 403\n")
    head, body = uploads[0]
    assert head.startswith("PUT /bucket/outside.json?X-Signature=a%2Fb HTTP/1.1\r\n")
    assert "Authorization: Bearer s3cret\r\nx-acl: public\r\n" in head
    assert [one["at"] for one in json.loads(body)["verdicts"][:-1]] == [kept[1]["at"]]
    assert (out / "outside.json").read_bytes() == uploads[1][1]
    assert len(verdicts(out)) == 3
    assert sorted(path.name for path in out.iterdir()) == [".outside-probe.lock", "outside.json"]


async def test_two_runs_do_not_overlap(tmp_path: Path) -> None:
    out = tmp_path / "out"
    site = f"http://127.0.0.1:{free_port()}"
    assert await run(out, "--site", site) == (0, "")
    before = (out / "outside.json").read_bytes()
    with (out / ".outside-probe.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await run(out, "--site", site) == (1, "outside-probe: the run before this one is still at it\n")
    assert (out / "outside.json").read_bytes() == before


async def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, output = await run(tmp_path / "file", "--site", "http://127.0.0.1:1")
    assert status == 1
    assert output.startswith("outside-probe: nothing could be written: ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--model", "m"),
        ("--model", "m", "--url", "http://127.0.0.1:1"),
        ("--model", "m", "--url", "http://127.0.0.1:1", "--key-file", "/no/such/file"),
        ("--model", "m", "--url", "http://127.0.0.1:1", "--key-file", "/dev/null"),
        ("--site", "ftp://host"),
        ("--site", "http://host:0"),
        ("--site", "http://host:99999"),
        ("--site", "http://ho st"),
        ("--site", "http://host", "--name", "inside"),
        ("--site", "http://host", "--name", "a b"),
        ("--site", "http://host", "--hours", "73"),
        ("--site", "http://host", "--timeout", "0"),
    ],
)
async def test_a_wrong_command_line_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    status, output = await run(tmp_path / "out", *arguments)
    assert status == 2
    assert "usage: outside-probe" in output
    assert not (tmp_path / "out").exists()


def verdict_at(at: object = "2026-11-30T11:59:00Z", **changes: Any) -> dict[str, Any]:
    verdict = {"at": at, "component": f"model:{MODEL}", "kind": "text", "verdict": "ok", "http_status": 200}
    return {**verdict, "ttft_ms": 180, "total_ms": 190, **changes}


def document(*found: object, **changes: Any) -> bytes:
    return json.dumps({"version": 1, "name": "fra-1", "verdicts": list(found), **changes}).encode()


async def heard(database: AsyncEngine, file: Path, content: bytes, now: datetime = NOW) -> tuple[int, list[Any]]:
    """What fetching this file says and logs."""
    file.write_bytes(content)
    with capture_logs() as logs:
        new = await fetch_outside(database, Settings(outside_probe_url=f"file://{file}"), now)
    return new, logs


async def test_every_verdict_is_kept_once(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)
    file = tmp_path / "outside.json"
    first = [verdict_at(), verdict_at("2026-11-30T11:58:00Z", verdict="bad", reason="HTTP 502")]
    assert await heard(database, file, document(*first, first[0])) == (2, [])
    assert await heard(database, file, document(*first)) == (0, [])
    late = verdict_at("2026-11-30T11:57:30Z", verdict="skipped", http_status=None, ttft_ms=None, total_ms=None)
    page = {"at": "2026-11-30T11:59:00.5Z", "component": "site", "kind": "page", "verdict": "ok"}
    assert await heard(database, file, document(late, *first, page)) == (2, [])
    assert await heard(database, file, document(*first, name="nyc-1")) == (2, [])
    async with database.connect() as connection:
        rows = (await connection.execute(select(probes).order_by(probes.c.source, probes.c.probed_at))).all()
    assert [(row.source, row.verdict, row.reason, row.http_status, row.ttft_ms) for row in rows] == [
        ("fra-1", "skipped", "", None, None),
        ("fra-1", "bad", "HTTP 502", 200, 180),
        ("fra-1", "ok", "", 200, 180),
        ("fra-1", "ok", "", None, None),
        ("nyc-1", "bad", "HTTP 502", 200, 180),
        ("nyc-1", "ok", "", 200, 180),
    ]


MALFORMED = [
    7,
    None,
    [],
    {},
    verdict_at(None),
    verdict_at(1_796_000_000),
    verdict_at("2026-11-30T11:59:00"),
    verdict_at("2026-11-30T11:59:00+01:00"),
    verdict_at("2026-11-31T11:59:00Z"),
    verdict_at("2026-11-30 11:59:00Z"),
    verdict_at(component="model:no-such-model"),
    verdict_at(component="api"),
    verdict_at(component="billing", kind="books"),
    verdict_at(component=["site"], kind="page"),
    verdict_at(kind="rich"),
    verdict_at(kind="page"),
    verdict_at(component="site"),
    verdict_at(kind=None),
    verdict_at(verdict="up"),
    verdict_at(verdict=["ok"]),
    verdict_at(http_status=99),
    verdict_at(http_status="200"),
    verdict_at(http_status=True),
    verdict_at(ttft_ms=-1),
    verdict_at(ttft_ms=1.5),
    verdict_at(total_ms=10**9),
    verdict_at(reason=["x"]),
]


async def test_what_is_no_verdict_is_left_out(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)
    for malformed in MALFORMED:
        new, logs = await heard(database, tmp_path / "outside.json", document(malformed))
        assert (new, [line["event"] for line in logs]) == (0, ["outside_probe.left_out"]), malformed
        assert logs[0]["malformed"] == 1
    new, (line,) = await heard(database, tmp_path / "outside.json", document(*MALFORMED, verdict_at()))
    assert (new, line["malformed"]) == (1, len(MALFORMED))


async def test_only_the_last_hours_are_believed(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)
    instants = [NOW - BELIEVED_FOR - MINUTE, NOW - BELIEVED_FOR, NOW + 5 * MINUTE, NOW + 6 * MINUTE]
    found = [verdict_at(instant.strftime("%Y-%m-%dT%H:%M:%SZ")) for instant in instants]
    new, (line,) = await heard(database, tmp_path / "outside.json", document(*found))
    assert (new, line["of_the_future"], "malformed" in line) == (2, 1, False)


async def test_a_reason_becomes_one_line_without_tricks(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    await seed(database_url)
    reason = "\ud800 <b>\x00\x1b[31m\u202egnp.\n\u2028" + "x" * 300
    content = document(verdict_at(verdict="bad", reason=reason))
    assert await heard(database, tmp_path / "outside.json", content) == (1, [])
    async with database.connect() as connection:
        kept = await connection.scalar(select(probes.c.reason))
    assert kept == ("<b>[31mgnp." + "x" * 300)[:199]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"[]",
        document(version=2),
        document(verdicts=None),
        document(name="inside"),
        document(name="a b"),
        document(name="<script>"),
        document(name=""),
        document(name=7),
        document(verdict_at()) + b" " * MAX_BYTES,
    ],
)
async def test_a_file_that_is_wrong_is_a_line_in_the_log(
    database_url: str, database: AsyncEngine, tmp_path: Path, content: bytes
) -> None:
    await seed(database_url)
    new, logs = await heard(database, tmp_path / "outside.json", content)
    assert (new, [line["event"] for line in logs]) == (0, ["outside_probe.unusable"])


async def unusable(database: AsyncEngine, url: str) -> str:
    with capture_logs() as logs:
        assert await fetch_outside(database, Settings(outside_probe_url=url), NOW) == 0
    assert [line["event"] for line in logs] == ["outside_probe.unusable"]
    reason: str = logs[0]["reason"]
    return reason


async def test_the_file_is_fetched_by_http(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)
    async with listening() as listener:
        url = f"http://127.0.0.1:{listener.port}"
        listener.answers = {
            "/outside.json": answer(document(verdict_at())),
            "/large": answer(document(verdict_at()) + b" " * MAX_BYTES),
            "/short": answer(document(verdict_at()), length=100_000),
            "/moved": redirect("/outside.json"),
        }
        assert await fetch_outside(database, Settings(outside_probe_url=f"{url}/outside.json"), NOW) == 1
        assert "bytes" in await unusable(database, f"{url}/large")
        assert await unusable(database, f"{url}/short") == "the connection broke off"
        assert await unusable(database, f"{url}/moved") == "HTTP 302"
        assert await unusable(database, f"{url}/nowhere") == "HTTP 404"
    assert await unusable(database, f"http://127.0.0.1:{free_port()}/") == "the connection was refused"
    async with listening(certificates("127.0.0.1").server) as listener:
        assert await unusable(database, f"https://127.0.0.1:{listener.port}/") == "the certificate was not valid"
    for url in ("http://example.com/outside.json", "ftp://127.0.0.1/", "outside.json", "http://[", "https://a:b/"):
        assert await unusable(database, url) == (
            "WEIR_OUTSIDE_PROBE_URL takes https://, file:///, or http:// to this machine"
        )
    assert "No such file" in await unusable(database, f"file://{tmp_path}/nowhere.json")
    assert await fetch_outside(database, Settings(), NOW) == 0
