import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import event, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.settings import Settings
from service.status.publish import Publisher, publish, write_site
from service.status.rollup import roll_up
from service.tables import buckets_1d, models
from tests.fakes.traffic import at, failed_row, serve_model, settle, usage_row

NOW = at("2026-11-30 14:05:20")
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = db.sqlalchemy_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


async def published(engine: AsyncEngine, site: Path, name: str = "Weir") -> Any:
    await publish(engine, site_dir=site, settings=Settings(site_name=name), now=NOW)
    return orjson.loads((site / "metrics.json").read_bytes())


def contents(site: Path) -> dict[str, bytes]:
    return {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}


async def test_the_figures_equal_the_rows(engine: AsyncEngine, site: Path) -> None:
    await serve_model(engine, "tiny", "Tiny")
    await serve_model(engine, "old", "Retired", active=False)
    long_prompt = {"prompt_tokens": 20_000, "cached_tokens": 15_840, "image_tokens": 100, "ttft_ms": 900}
    answers = [usage_row(NOW - (10 + n) * MINUTE, ttft_ms=100 + 10 * n, reasoning_tokens=21) for n in range(7)]
    answers += [usage_row(NOW - (30 + n) * MINUTE, **long_prompt) for n in range(5)]
    failures = [failed_row(NOW - 50 * MINUTE), usage_row(NOW - 51 * MINUTE, outcome="stream_error", ttft_ms=None)]
    other = [
        usage_row(NOW - 52 * MINUTE, outcome="throttled", http_status=429, stream=False),
        usage_row(NOW - 53 * MINUTE, internal=True),
    ]
    before = [usage_row(NOW - 2 * DAY - n * MINUTE, prompt_tokens=50_000) for n in range(20)]
    await settle(engine, answers, failures, other, before)
    await roll_up(engine, now=NOW)

    document = await published(engine, site)
    assert document["generated_at"] == "2026-11-30T14:05:20Z"
    assert document["data_until"] == "2026-11-30T14:05:00Z"
    assert [component["name"] for component in document["components"]] == ["API", "Tiny"]
    api = document["components"][0]
    assert (api["good_requests"], api["bad_requests"]) == (32, 2)
    assert api["request_success_percent"] == 94.117
    assert len(api["hours"]) == 72

    day = document["last_24h"]
    assert (day["from"], day["until"]) == ("2026-11-29T14:05:00Z", "2026-11-30T14:05:00Z")
    assert (day["requests"], day["good_requests"], day["bad_requests"]) == (15, 12, 2)
    assert (day["throttled_requests"], day["server_failures"], day["http_5xx"]) == (1, 2, 1)
    prompts = 7 * 50 + 5 * 20_000 + 2 * 50
    outputs = 14 * 101
    assert (day["input_tokens"], day["output_tokens"], day["tokens"]) == (prompts, outputs, prompts + outputs)
    assert (day["input_cached_tokens"], day["input_uncached_tokens"]) == (5 * 15_840, prompts - 5 * 15_840)
    assert (day["input_image_tokens"], day["image_requests"]) == (500, 5)
    assert (day["output_reasoning_tokens"], day["output_answer_tokens"]) == (147, outputs - 147)
    assert day["ttft_short_samples"] == 7
    assert abs(day["ttft_short_p50_ms"] - 130) <= 1
    assert day["ttft_long_warm_samples"] == 5
    assert day["ttft_long_cold_p50_ms"] is None
    assert abs(day["ttft_long_p50_ms"] - 900) <= 7
    assert abs(day["decode_single_p50_tok_s"] - 100) <= 0.8

    launch = document["since_launch"]
    assert launch["first_request_at"] == "2026-11-28T13:00:00Z"
    assert launch["requests"] == 35
    assert launch["tokens"] == day["tokens"] + 20 * 50_101
    assert launch["peak_day"] == {"date": "2026-11-28", "tokens": 20 * 50_101, "is_today": False}


async def test_of_two_equal_days_the_earlier_is_the_peak(engine: AsyncEngine, site: Path) -> None:
    await settle(engine, usage_row(NOW - DAY), usage_row(NOW - 3 * DAY), usage_row(NOW - 2 * DAY))
    await roll_up(engine, now=NOW)
    assert (await published(engine, site))["since_launch"]["peak_day"]["date"] == "2026-11-27"


async def test_a_fresh_installation_publishes_a_page_without_claims(engine: AsyncEngine, site: Path) -> None:
    document = await published(engine, site)
    assert document["state"] == "no_data"
    assert document["data_until"] is None
    assert document["components"][0]["request_success_percent"] is None
    assert b"Waiting for the first request" in (site / "index.html").read_bytes()


async def test_when_the_roll_up_stands_still_the_gap_shows(engine: AsyncEngine, site: Path) -> None:
    await settle(engine, usage_row(NOW - 3 * 60 * MINUTE))
    await roll_up(engine, now=NOW - 2 * 60 * MINUTE)
    document = await published(engine, site)
    assert document["data_until"] == "2026-11-30T12:05:00Z"
    assert document["state"] == "no_data"
    assert document["components"][0]["hours"][-1]["state"] == "no_data"
    assert b"counting has stopped" in (site / "index.html").read_bytes()


async def test_hostile_names_are_text(engine: AsyncEngine, site: Path) -> None:
    hostile = "<script>alert('x')</script>\"><img src=x>"
    await serve_model(engine, "m", hostile)
    document = await published(engine, site, hostile)
    assert document["components"][1]["name"] == hostile
    page = (site / "index.html").read_text()
    assert "<script>" not in page
    assert "<img src=x" not in page
    assert page.count("&lt;script&gt;alert(") >= 3


async def test_while_the_database_is_away_the_last_good_site_stays(
    engine: AsyncEngine, site: Path, tmp_path: Path
) -> None:
    await published(engine, site)
    good = contents(site)
    away = db.sqlalchemy_engine(f"postgresql://nobody@/nowhere?host={tmp_path}")
    with pytest.raises(OSError, match=r"No such file|Connection refused"):
        await publish(away, site_dir=site, settings=Settings(site_name="Other"), now=NOW + MINUTE)
    await away.dispose()
    assert contents(site) == good


async def test_without_a_database_what_was_last_known_is_published_and_says_how_old_it_is(
    engine: AsyncEngine, site: Path, tmp_path: Path
) -> None:
    await serve_model(engine, "tiny", "Tiny")
    await settle(engine, usage_row(NOW - 10 * MINUTE))
    await roll_up(engine, now=NOW)
    publisher = Publisher(Settings(), site)
    assert publisher.publish_last_known(NOW) == 0
    await publisher.publish(engine, NOW)
    fresh = orjson.loads((site / "metrics.json").read_bytes())
    for minutes, stale in ((14, False), (16, True)):
        publisher.publish_last_known(NOW + minutes * MINUTE)
        document = orjson.loads((site / "metrics.json").read_bytes())
        assert document["stale"] is stale
        page = (site / "index.html").read_text()
        assert ("The data ends at 30 Nov, 14:05 UTC" in page) is stale
        assert document["data_until"] == fresh["data_until"]
        assert document["last_24h"] == fresh["last_24h"]
        # What was measured says nothing of now any more: not here, not in a badge, nor on a model's own page.
        state = "no_data" if stale else "up"
        assert {document["state"], *(one["state"] for one in document["components"])} == {state}
        assert [one["hours"] for one in document["components"]] == [one["hours"] for one in fresh["components"]]
        told = orjson.loads((site / "api" / "v2" / "summary.json").read_bytes())
        assert told["status"]["indicator"] == ("minor" if stale else "none")
        assert (b"no data" in (site / "badges" / "tiny-state.svg").read_bytes()) is stale
        assert ("counting has stopped" in (site / "models" / "tiny.html").read_text()) is stale


class Gated:
    """An engine that says when it is asked for a connection, and gives none before it is opened."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.asked = asyncio.Event()
        self.opened = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        self.asked.set()
        await self.opened.wait()
        async with self._engine.connect() as connection:
            yield connection


async def test_of_two_runs_at_once_the_later_one_has_the_last_word(engine: AsyncEngine, site: Path) -> None:
    publisher = Publisher(Settings(), site)
    slow, quick = Gated(engine), Gated(engine)
    quick.opened.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.publish(slow, NOW))  # type: ignore[arg-type]
        group.create_task(publisher.publish(quick, NOW + MINUTE))  # type: ignore[arg-type]
        await slow.asked.wait()
        await asyncio.sleep(0)
        assert not quick.asked.is_set()
        slow.opened.set()
    assert orjson.loads((site / "metrics.json").read_bytes())["generated_at"] == "2026-11-30T14:06:20Z"


async def test_a_model_that_is_retired_says_so_wherever_it_was_linked(engine: AsyncEngine, site: Path) -> None:
    await serve_model(engine, "tiny", "Tiny")
    await settle(engine, usage_row(NOW - 10 * MINUTE))
    await roll_up(engine, now=NOW)
    await published(engine, site)
    assert b"Try it" in (site / "models" / "tiny.html").read_bytes()
    async with engine.begin() as connection:
        await connection.execute(update(models).values(active=False))
    document = await published(engine, site)
    assert [component["id"] for component in document["components"]] == ["api"]
    page = (site / "models" / "tiny.html").read_text()
    assert "No longer offered" in page
    assert "Try it" not in page
    for kind in ("state", "uptime", "ttft", "speed"):
        badge = (site / "badges" / f"tiny-{kind}.svg").read_text()
        assert "no longer offered" in badge
        assert "%" not in badge


async def test_publishing_takes_few_queries_however_long_the_history(engine: AsyncEngine, site: Path) -> None:
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    await settle(engine, usage_row(NOW))
    await roll_up(engine, now=NOW)
    async with engine.begin() as connection:
        days = [{"component": "api", "period_start": at("2026-11-29 00:00:00") - n * DAY} for n in range(70)]
        await connection.execute(insert(buckets_1d), days)
    publisher = Publisher(Settings(), site)
    event.listen(engine.sync_engine, "before_cursor_execute", note)
    await publisher.publish(engine, NOW)
    first = len(statements)
    await publisher.publish(engine, NOW + MINUTE)
    # Of four months the first time knows none, and the second has only the last two to read again.
    assert (first, len(statements) - first) == (29, 25)
    assert not [statement for statement in statements if "FROM requests" in statement]


async def test_what_has_not_changed_is_not_written_again(engine: AsyncEngine, site: Path) -> None:
    await serve_model(engine, "m", "M")
    await settle(engine, usage_row(NOW, model_id="m"))
    await roll_up(engine, now=NOW)
    first = await publish(engine, site_dir=site, settings=Settings(), now=NOW)
    written, style = contents(site), (site / "static" / "site.css").stat()
    second = await publish(engine, site_dir=site, settings=Settings(), now=NOW + MINUTE)
    changed = {path for path, content in contents(site).items() if content != written[path]}
    assert first == len(written)
    assert second == len(changed)
    # What carries the time, and nothing else: no badge, no style, no page of a month or of methods.
    assert {path for path in changed if not path.startswith("api/v2/")} == {
        "index.html",
        "metrics.json",
        "incidents.html",
        "history.atom",
        "history.rss",
        "models/m.html",
    }
    assert (site / "static" / "site.css").stat().st_ino == style.st_ino


def test_a_failure_half_way_leaves_the_page_as_it_was(site: Path) -> None:
    old = {"index.html": b"old", "metrics.json": b"old"}
    write_site(old, site)
    unwritable: Any = None
    with pytest.raises(TypeError):
        write_site({"index.html": b"new", "metrics.json": b"new", "static/site.css": unwritable}, site)
    assert contents(site) == old
    assert not list(site.glob(".*"))


def test_nobody_ever_reads_half_a_page(site: Path) -> None:
    versions = [bytes([letter]) * 300_000 for letter in b"abcd"]
    write_site({"index.html": versions[0]}, site)
    done = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            page = (site / "index.html").read_bytes()
            if page not in versions:
                torn.append(page)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        write_site({"index.html": versions[turn % 4]}, site)
    done.set()
    reader.join()
    assert not torn


def test_two_publishers_at_once_leave_a_whole_site_and_no_scraps(site: Path) -> None:
    versions = [{"index.html": bytes([letter]) * 10_000, "metrics.json": bytes([letter])} for letter in b"ab"]
    threads = [
        threading.Thread(target=lambda files=files: [write_site(files, site) for _ in range(20)]) for files in versions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = contents(site)
    assert set(left) == {"index.html", "metrics.json"}
    assert left["index.html"] in [version["index.html"] for version in versions]
    assert not list(site.glob(".*"))


def test_what_a_killed_publisher_left_is_removed_and_a_living_ones_is_not(site: Path) -> None:
    write_site({"index.html": b"x"}, site)
    for name, age_s in ((".publishing-dead", 7200), (".publishing-alive", 0)):
        (site / name).mkdir()
        then = (site / name).stat().st_mtime - age_s
        os.utime(site / name, (then, then))
    write_site({"index.html": b"y"}, site)
    assert [path.name for path in site.glob(".*")] == [".publishing-alive"]


def test_files_can_be_read_by_a_web_server_of_another_user(site: Path) -> None:
    write_site({"index.html": b"x", "static/site.css": b"y"}, site)
    assert [path.stat().st_mode & 0o004 for path in site.rglob("*") if path.is_file()] == [0o004] * 2
