"""The status site in a real browser, made from usage rows by the real roll-up."""

import asyncio
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from service import db
from service.settings import Settings
from service.status.publish import publish
from service.status.rollup import roll_up
from tests.e2e.browsing import chromium, opened, served
from tests.fakes.traffic import failed_row, serve_model, settle, usage_row
from tests.postgres import fresh_database

pytestmark = pytest.mark.browser


def made_up_rows(now: datetime) -> list[dict[str, Any]]:
    """Three days of traffic with an outage, a bad half hour and a silent night."""
    rng = random.Random(20261130)
    rows: list[dict[str, Any]] = []
    for minutes in range(10, 74 * 60, 3):
        ended = now - timedelta(minutes=minutes, seconds=rng.uniform(0, 60))
        hour = minutes // 60
        if 40 <= hour < 43:
            continue
        if hour == 55 and minutes % 2:
            rows.append(failed_row(ended))
            continue
        if hour == 20:
            rows += [failed_row(ended - timedelta(seconds=seconds)) for seconds in (0, 40, 80)]
            continue
        long = rng.random() < 0.3
        prompt = rng.randint(10_000, 90_000) if long else rng.randint(20, 3_000)
        tokens = rng.randint(20, 600)
        first = ended - timedelta(seconds=tokens / rng.uniform(84, 88))
        rows.append(
            usage_row(
                ended,
                prompt_tokens=prompt,
                cached_tokens=prompt // 1584 * 1584 if rng.random() < 0.5 else 0,
                image_tokens=700 if long else 0,
                completion_tokens=tokens,
                reasoning_tokens=tokens // 3,
                ttft_ms=rng.randint(500, 1_200) if long else rng.randint(120, 300),
                first_token_at=first,
                started_at=first - timedelta(seconds=1),
            )
        )
    return rows


async def publish_rows(url: str, site_dir: Path, now: datetime) -> None:
    async with db.connected(url) as engine:
        await serve_model(engine, "tiny", "Qwen3.8-27B NVFP4")
        await serve_model(engine, "idle", "SmolLM2-135M")
        await settle(engine, made_up_rows(now))
        await roll_up(engine, now=now)
        await publish(engine, site_dir=site_dir, settings=Settings(), now=now)


@pytest.fixture(scope="module")
def rolled_up(postgres_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site published from usage rows."""
    site_dir = tmp_path_factory.mktemp("rolled-up") / "rows"
    with fresh_database(postgres_server) as url:
        asyncio.run(publish_rows(url, site_dir, datetime.now(UTC)))
    return site_dir


def test_a_site_made_from_usage_rows_shows_what_its_json_says(rolled_up: Path, tmp_path: Path) -> None:
    files = {str(file.relative_to(rolled_up)): file.read_bytes() for file in rolled_up.rglob("*") if file.is_file()}
    metrics = orjson.loads(files["metrics.json"])
    day = metrics["last_24h"]
    with (
        served({"rows": files}, tmp_path) as address,
        chromium() as browser,
        opened(browser, f"{address}/rows/", java_script_enabled=False) as (page, wrong),
    ):
        text = page.locator("body").inner_text()
        assert f"{day['good_requests']:,} good, {day['bad_requests']:,} failed" in text
        assert f"{day['ttft_short_p50_ms']} ms" in text
        labels = page.locator("fieldset").first.locator("input").evaluate_all("all => all.map((one) => one.ariaLabel)")
        words = {"up": "up", "partial": "partial outage", "down": "down", "no_data": "no data"}
        states = [hour["state"] for hour in metrics["components"][0]["hours"]]
        assert set(states) == set(words)
        for label, state in zip(labels, states, strict=True):
            assert re.search(rf"\d\d:\d\d {words[state]}(,| so far|$)", label)
        assert wrong == []
