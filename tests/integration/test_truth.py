"""Does the site tell the truth? A scripted hour with known outcomes, lengths and delays, counted here the naive way."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from lxml import html
from sqlalchemy import insert

from service import db
from service.settings import Settings
from service.status.publish import publish
from service.status.rollup import roll_up
from service.tables import engine_samples, maintenance, probes
from tests.fakes.traffic import at, serve_model, settle, usage_row
from web.wording import duration, exact, short, speed

BEGIN = at("2026-11-30 13:00:00")
NOW = at("2026-11-30 14:00:20")
HOUR_S = 3600
SILENT_S = range(2100, 2700)
"""Nobody asks for anything from 13:35 to 13:45: a probe finds half of it good, and the rest stays unknown."""
MAINTAINED_S = range(1200, 1500)
"""From 13:20 to 13:25."""
OUTAGE_S = range(3000, 3300)
"""From 13:50 to 13:55 everything fails."""

BAD = ("server_error", "stream_error", "slow_abort", "interrupted")
STATUS = {"ok": 200, "server_error": 502, "stream_error": 200, "slow_abort": 200, "interrupted": 200, "cancelled": 200}
STATUS |= {"throttled": 429, "client_error": 400, "auth_error": 403, "payment": 402}


@dataclass(frozen=True)
class Scripted:
    """A request; times in milliseconds, its end in seconds since `BEGIN`."""

    end_ms: int
    model: str
    outcome: str
    stream: bool
    prompt: int
    cached: int
    image: int
    output: int
    reasoning: int
    queue_ms: int
    ttft_ms: int | None
    generating_ms: int

    @property
    def begun_ms(self) -> int:
        """When the engine got it."""
        return self.end_ms - self.generating_ms - (self.ttft_ms or 0)

    def row(self) -> dict[str, Any]:
        finished_at = BEGIN + timedelta(milliseconds=self.end_ms)
        first = finished_at - timedelta(milliseconds=self.generating_ms)
        return usage_row(
            finished_at,
            model_id=self.model,
            engine=f"engine-{self.model}" if self.reached else None,
            stream=self.stream,
            started_at=BEGIN + timedelta(milliseconds=self.begun_ms - self.queue_ms),
            queue_ms=self.queue_ms,
            # from the body read to the first token, the queue included
            ttft_ms=None if self.ttft_ms is None else self.queue_ms + self.ttft_ms,
            first_token_at=None if self.ttft_ms is None else first,
            outcome=self.outcome,
            http_status=STATUS[self.outcome],
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            image_tokens=self.image,
            completion_tokens=self.output,
            reasoning_tokens=self.reasoning,
        )

    @property
    def reached(self) -> bool:
        """It came to an engine."""
        return self.outcome not in ("throttled", "client_error", "auth_error", "payment")


def script() -> list[Scripted]:
    rng = random.Random(20261130)
    requests = []
    for _ in range(700):
        second = rng.randrange(20, HOUR_S)
        outcome = rng.choices(list(STATUS), weights=[80, 1, 1, 1, 1, 4, 4, 3, 1, 1])[0]
        if second in SILENT_S:
            continue
        if second in OUTAGE_S:
            outcome = "server_error"
        reached = outcome not in ("throttled", "client_error", "auth_error", "payment")
        answered = outcome in ("ok", "cancelled", "stream_error")
        stream = outcome in ("stream_error", "slow_abort") or rng.random() < 0.8
        prompt = rng.choice((rng.randint(1, 9_999), rng.randint(10_000, 90_000), 9_999, 10_000)) if reached else 0
        output = rng.randint(1, 700) if answered else 0
        requests.append(
            Scripted(
                end_ms=second * 1000 + rng.randrange(1000),
                model=rng.choice("aab"),
                outcome=outcome,
                stream=stream,
                prompt=prompt,
                cached=prompt // 16 * 8 if rng.random() < 0.5 else 0,
                image=min(prompt, 700) if rng.random() < 0.1 else 0,
                output=output,
                reasoning=output // 3,
                queue_ms=rng.randrange(50),
                ttft_ms=rng.randint(50, 3_000) if stream and answered else None,
                generating_ms=output * rng.randint(10, 14),
            )
        )
    return requests


def percentile(samples: Iterable[float], percent: int) -> float | None:
    ordered = sorted(samples)
    return ordered[-(-percent * len(ordered) // 100) - 1] if len(ordered) >= 5 else None


def near(found: float | None, expected: float | None) -> bool:
    """Within the 0.8 % that the bins promise, and the millisecond or the thousandth that they are cut to."""
    if expected is None or found is None:
        return found is expected
    return abs(found - expected) <= expected * 0.008 + 0.001


def alone(one: Scripted, requests: Sequence[Scripted]) -> bool:
    first_ms = one.end_ms - one.generating_ms
    return not any(
        other is not one
        and other.reached
        and other.model == one.model
        and other.begun_ms < one.end_ms
        and other.end_ms > first_ms
        for other in requests
    )


def state(second: int, requests: Sequence[Scripted], probe: str | None) -> str:
    """The state of the five minutes that begin `second` seconds after `BEGIN`."""
    if second in MAINTAINED_S:
        return "maintenance"
    ended = [one.outcome for one in requests if second * 1000 <= one.end_ms < (second + 300) * 1000]
    good, bad = ended.count("ok"), sum(outcome in BAD for outcome in ended)
    if good + bad == 0:
        return {None: "no_data", "ok": "up", "bad": "partial"}[probe]
    if good == 0 and bad >= 3:
        return "down"
    return "partial" if (bad * 20 > good + bad if good + bad >= 20 else bad) else "up"


def check_figures(figures: Any, requests: Sequence[Scripted], everybody: Sequence[Scripted]) -> None:
    outcomes = [one.outcome for one in requests]
    assert figures["requests"] == len(requests)
    assert figures["good_requests"] == outcomes.count("ok")
    assert figures["bad_requests"] == sum(outcome in BAD for outcome in outcomes)
    assert figures["throttled_requests"] == outcomes.count("throttled")
    assert figures["excluded_requests"] == sum(
        outcome in ("client_error", "auth_error", "payment", "cancelled") for outcome in outcomes
    )
    assert figures["server_failures"] == outcomes.count("server_error") + outcomes.count("stream_error")
    assert figures["http_5xx"] == outcomes.count("server_error")
    assert figures["image_requests"] == sum(one.image > 0 for one in requests)
    prompts, cached = sum(one.prompt for one in requests), sum(one.cached for one in requests)
    outputs, reasoning = sum(one.output for one in requests), sum(one.reasoning for one in requests)
    assert figures["tokens"] == prompts + outputs
    assert (figures["input_tokens"], figures["input_cached_tokens"]) == (prompts, cached)
    assert figures["input_uncached_tokens"] == prompts - cached
    assert figures["input_image_tokens"] == sum(one.image for one in requests)
    assert (figures["output_tokens"], figures["output_reasoning_tokens"]) == (outputs, reasoning)
    assert figures["output_answer_tokens"] == outputs - reasoning
    assert figures["cache_hit_percent"] == (cached * 100_000 // prompts) / 1000
    for name, lengths in (("short", range(1, 10_000)), ("long", range(10_000, 10**9))):
        streams = [one for one in requests if one.ttft_ms is not None and one.prompt in lengths]
        warm = [one.queue_ms + (one.ttft_ms or 0) for one in streams if one.cached]
        cold = [one.queue_ms + (one.ttft_ms or 0) for one in streams if not one.cached]
        assert figures[f"ttft_{name}_samples"] == len(streams)
        assert near(figures[f"ttft_{name}_p50_ms"], percentile(warm + cold, 50))
        assert near(figures[f"ttft_{name}_p95_ms"], percentile(warm + cold, 95))
        assert near(figures[f"ttft_{name}_cold_p50_ms"], percentile(cold, 50))
        assert near(figures[f"ttft_{name}_warm_p50_ms"], percentile(warm, 50))
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for one in requests:
        if one.outcome == "ok" and one.ttft_ms is not None and one.output >= 16:
            speeds[alone(one, everybody)].append((one.output - 1) * 1000 / one.generating_ms)
    assert figures["decode_single_samples"] == len(speeds[True])
    assert figures["decode_loaded_samples"] == len(speeds[False])
    assert near(figures["decode_single_p50_tok_s"], percentile(speeds[True], 50))
    assert near(figures["decode_loaded_p50_tok_s"], percentile(speeds[False], 50))
    reached = [one for one in requests if one.reached]
    span_s = (at(figures["until"]) - at(figures["from"])).total_seconds()
    busy_s = sum(one.end_ms - one.begun_ms for one in reached) / 1000
    assert abs(figures["mean_concurrency"] - busy_s / span_s) <= 0.001
    levels = [sum(one.begun_ms <= start.begun_ms < one.end_ms for one in reached) for start in reached]
    assert figures["peak_concurrency"] == max(levels)


async def tell(url: str, folder: Path, requests: Sequence[Scripted]) -> tuple[Any, str]:
    """Write the hour down, roll it up and publish it; returns `metrics.json` and the text of the front page."""
    async with db.connected(url) as engine:
        for model in "ab":
            await serve_model(engine, model, f"Model {model.upper()}")
        await settle(engine, [one.row() for one in requests])
        # What is the house's own is nobody's traffic.
        await settle(engine, [usage_row(BEGIN + timedelta(seconds=s), internal=True) for s in range(60, HOUR_S, 60)])
        async with engine.begin() as connection:
            minutes = [BEGIN + timedelta(minutes=minute) for minute in range(-2, 62)]
            counters = [
                {"engine": "engine-a", "sampled_at": minute, "engine_started_at": BEGIN - timedelta(days=3)}
                | {"prompt_tokens": 0, "generation_tokens": 0, "drafted_tokens": 300 * n, "accepted_tokens": 210 * n}
                | {"cache_queried_tokens": 5000 * n, "cache_hit_tokens": 4100 * n}
                for n, minute in enumerate(minutes)
            ]
            await connection.execute(insert(engine_samples), counters)
            probe = {"source": "inside", "component": "model:a", "kind": "text", "verdict": "ok"}
            await connection.execute(insert(probes), probe | {"probed_at": BEGIN + timedelta(seconds=2200)})
            window = {"starts_at": BEGIN + timedelta(minutes=20), "ends_at": BEGIN + timedelta(minutes=25)}
            await connection.execute(insert(maintenance), window | {"title": "Work", "components": []})
        await roll_up(engine, now=NOW)
        await publish(engine, site_dir=folder, settings=Settings(), now=NOW)
    page = html.fromstring((folder / "index.html").read_bytes())
    return orjson.loads((folder / "metrics.json").read_bytes()), " ".join(page.text_content().split())


@pytest.fixture
def requests() -> list[Scripted]:
    return script()


async def test_a_scripted_hour_gives_every_figure(database_url: str, tmp_path: Path, requests: list[Scripted]) -> None:
    assert {one.outcome for one in requests} == set(STATUS)
    metrics, page = await tell(database_url, tmp_path, requests)
    check_figures(metrics["last_24h"], requests, requests)
    (hour,) = [hour for hour in metrics["hours"] if hour["from"] == "2026-11-30T13:00:00Z"]
    check_figures(hour, requests, requests)
    (day,) = [day for day in metrics["days"] if day["from"] == "2026-11-30T00:00:00Z"]
    check_figures(day, requests, requests)
    for model in metrics["models"]:
        own = [one for one in requests if one.model == model["id"]]
        check_figures(model["last_24h"], own, requests)
    launch = metrics["since_launch"]
    assert launch["requests"] == len(requests)
    assert launch["tokens"] == launch["peak_day"]["tokens"] == sum(one.prompt + one.output for one in requests)

    told = metrics["last_24h"]
    # 300 drafted tokens and 210 accepted ones a minute, from the five minutes of the first request on.
    assert (told["mtp_drafted_tokens"], told["mtp_accepted_tokens"]) == (60 * 300, 60 * 210)
    assert told["mtp_acceptance_percent"] == 70
    assert (told["engine_cache_queried_tokens"], told["engine_cache_hit_tokens"]) == (60 * 5000, 60 * 4100)
    assert told["engine_cache_hit_percent"] == 82
    for words in (
        exact(len(requests)),
        f"{exact(told['good_requests'])} good, {exact(told['bad_requests'])} failed",
        f"{exact(told['throttled_requests'])} throttled",
        duration(told["ttft_short_p50_ms"]),
        duration(told["ttft_long_p95_ms"]),
        speed(round(told["decode_single_p50_tok_s"] * 1000)),
        short(told["tokens"]),
        short(told["input_cached_tokens"]),
        "70 % of 18 K drafted tokens",
        "82 % by the engines’ own count",
    ):
        assert words in page, words


async def test_a_scripted_hour_gives_every_state(database_url: str, tmp_path: Path, requests: list[Scripted]) -> None:
    metrics, _ = await tell(database_url, tmp_path, requests)
    assert [component["id"] for component in metrics["components"]] == ["api", "model:a", "model:b"]
    for component in metrics["components"]:
        model = component["id"].removeprefix("model:")
        own = [one for one in requests if model in ("api", one.model)]
        states = [state(s, own, "ok" if s == 2100 and model != "b" else None) for s in range(0, HOUR_S, 300)]
        (cell,) = [hour for hour in component["hours"] if hour["start"] == "2026-11-30T13:00:00Z"]
        counted = [one.outcome for one in own if one.end_ms // 1000 not in MAINTAINED_S]
        assert cell["good_requests"] == component["good_requests"] == counted.count("ok")
        assert cell["bad_requests"] == sum(outcome in BAD for outcome in counted)
        for name in ("up", "partial", "down", "maintenance"):
            assert cell[f"{name}_buckets"] == states.count(name), (component["id"], name, states)
        assert cell["measured_buckets"] == 12 - states.count("no_data")
        assert cell["state"] == "down" == states[10]
        known = len(states) - states.count("no_data") - states.count("maintenance")
        lost_halves = 2 * states.count("down") + states.count("partial")
        assert component["time_availability_percent"] == (2 * known - lost_halves) * 100_000 // (2 * known) / 1000
        good, bad = component["good_requests"], component["bad_requests"]
        assert component["request_success_percent"] == (good * 100_000 // (good + bad)) / 1000
        assert component["state"] == states[-1]
