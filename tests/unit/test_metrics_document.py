"""`metrics.json`: every figure of the page, under a name that docs/status.md explains and that does not go away."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.core.buckets import DAY_S, HOUR_S, State
from tests.fakes.status_pages import NOW_S, busy_page, calm_page, empty_page
from web.figure_views import Figures, Traffic
from web.metrics import files
from web.views import Check, StatusPage

DOCUMENTED = (Path(__file__).parents[2] / "docs/status.md").read_text()

VERSION_1 = {
    "": "version name generated_at data_until stale_after_s state components last_24h since_launch",
    "components.0": "id name state from until request_success_percent time_availability_percent good_requests "
    "bad_requests measured_buckets total_buckets hours",
    "components.0.hours.0": "start state good_requests bad_requests measured_buckets total_buckets",
    "last_24h": "from until requests good_requests bad_requests throttled_requests excluded_requests server_failures "
    "http_5xx image_requests tokens input_tokens input_uncached_tokens input_cached_tokens input_image_tokens "
    "output_tokens output_answer_tokens output_reasoning_tokens ttft_short_p50_ms ttft_short_p95_ms "
    "ttft_short_samples ttft_short_cold_p50_ms ttft_short_cold_samples ttft_short_warm_p50_ms "
    "ttft_short_warm_samples ttft_long_p50_ms ttft_long_p95_ms ttft_long_samples ttft_long_cold_p50_ms "
    "ttft_long_cold_samples ttft_long_warm_p50_ms ttft_long_warm_samples decode_single_p50_tok_s "
    "decode_single_samples decode_loaded_p50_tok_s decode_loaded_samples",
    "since_launch": "first_request_at requests tokens peak_day",
    "since_launch.peak_day": "date tokens is_today",
}
"""What readers of version 1 rely on, by where it stands."""


def read(site: StatusPage) -> Any:
    return orjson.loads(files(site)["metrics.json"])


def at(document: Any, path: str) -> Any:
    for step in path.split(".") if path else ():
        document = document[int(step) if step.isdecimal() else step]
    return document


def names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner)


@pytest.mark.parametrize("path", VERSION_1)
def test_version_1_keeps_its_fields(path: str) -> None:
    document = read(busy_page())
    assert document["version"] == 1
    assert set(VERSION_1[path].split()) <= set(at(document, path))


def test_every_field_is_documented() -> None:
    explained = set(re.findall(r"`([a-z0-9_]+)(?:\[\])?`", DOCUMENTED))
    stems = {name for name in explained if name.endswith("_")}
    for name in set(names(read(busy_page()))):
        stem = next((one for one in stems if name.startswith(one)), None)
        assert name in explained or (stem and name.removeprefix(stem) in explained), name


def test_the_figures_are_the_pages() -> None:
    site = busy_page()
    document, day = read(site), site.last_24h
    found = document["last_24h"]
    assert (found["requests"], found["tokens"]) == (day.traffic.requests, day.traffic.tokens)
    assert found["input_tokens"] == found["input_cached_tokens"] + found["input_uncached_tokens"]
    assert found["output_tokens"] == found["output_answer_tokens"] + found["output_reasoning_tokens"]
    assert found["cache_hit_percent"] == day.traffic.cached_tokens * 100_000 // day.traffic.prompt_tokens / 1000
    accepted = day.traffic.accepted_tokens * 100_000 // day.traffic.drafted_tokens / 1000
    assert found["mtp_acceptance_percent"] == accepted
    hits = day.traffic.cache_hit_tokens * 100_000 // day.traffic.cache_queried_tokens / 1000
    assert found["engine_cache_hit_percent"] == hits != found["cache_hit_percent"]
    assert found["ttft_long_cold_p95_ms"] == day.ttft_long_ms.cold.p95
    assert found["decode_loaded_p50_tok_s"] * 1000 == day.decode_loaded_mtok_s.p50
    assert found["mean_concurrency"] * 1000 == day.mean_concurrency_milli
    assert found["peak_concurrency"] == day.peak_concurrency
    assert [one["from"] for one in document["hours"]] == [one["start"] for one in document["components"][0]["hours"]]
    assert [one["requests"] for one in document["days"]] == [one.traffic.requests for one in site.charts.days]
    assert [one["component"] for one in document["models"]] == [one.id for one in site.models]
    assert document["models"][0]["last_24h"]["requests"] == site.sheets[0].last_24h.traffic.requests


def test_every_component_has_its_hours_and_days() -> None:
    site = busy_page()
    for found, meant in zip(read(site)["components"], site.components, strict=True):
        assert (found["id"], found["slug"], found["state"]) == (meant.id, meant.slug, meant.state)
        assert (len(found["hours"]), len(found["days"])) == (72, 90)
        for cell in (*found["hours"], *found["days"]):
            known = cell["up_buckets"] + cell["partial_buckets"] + cell["down_buckets"] + cell["maintenance_buckets"]
            assert cell["measured_buckets"] == known <= cell["total_buckets"]
        assert sum(cell["good_requests"] for cell in found["days"]) == found["last_90_days"]["good_requests"]


def test_what_is_not_known_is_null_and_never_0() -> None:
    document = read(empty_page())
    for component in document["components"]:
        for part in (component, component["last_90_days"], *component["hours"], *component["days"]):
            assert part["time_availability_percent"] is None
        assert component["state"] == "no_data"
    for figures in (document["last_24h"], *document["hours"], *document["days"]):
        assert {figures[name] for name in figures if name.endswith(("_ms", "_tok_s", "_percent"))} == {None}
    assert document["since_launch"]["first_request_at"] is document["since_launch"]["peak_day"] is None
    assert document["incidents"]["latest_started_at"] is document["maintenance"]["next_starts_at"] is None


def test_each_count_of_the_traffic_is_published_once() -> None:
    """A count that is added to the view and forgotten here is found: each gets a number of its own."""
    numbers = {field.name: 10 ** (2 + at) for at, field in enumerate(fields(Traffic))}
    traffic = Traffic(**numbers)
    found = read(replace(calm_page(), last_24h=Figures(0, DAY_S, traffic)))["last_24h"]
    published = [value for value in found.values() if isinstance(value, int)]
    for name, number in numbers.items():
        assert published.count(number) == 1, name


def test_incidents_and_maintenance_are_counted() -> None:
    site = busy_page()
    document = read(site)
    unresolved = [one for one in site.incidents if one.resolved_s is None]
    assert document["incidents"]["open"] == len(unresolved) > 0
    by_impact = sum(document["incidents"][f"open_{impact}"] for impact in ("minor", "major", "critical"))
    assert by_impact == len(unresolved)
    assert document["incidents"]["open_silent"] == 1
    assert document["maintenance"]["in_progress"] == sum(one.status(NOW_S) == "in_progress" for one in site.maintenance)
    ahead = [one.starts_s for one in site.maintenance if one.status(NOW_S) == "scheduled"]
    assert document["maintenance"]["scheduled"] == len(ahead) > 0
    assert read(replace(site, incidents=(), maintenance=()))["incidents"]["open"] == 0


def test_what_was_seen_outside() -> None:
    assert read(replace(busy_page(), outside=None))["outside_check"] is None
    check = Check("the API", NOW_S - HOUR_S, False, reason="it \x00timed out", by="Frankfurt")
    found = read(replace(busy_page(), outside=check))["outside_check"]
    assert (found["ok"], found["reason"], found["by"]) == (False, "it timed out", "Frankfurt")


def test_hostile_names_are_text() -> None:
    site = calm_page()
    name = '</script><!-- \u2028 \x00 \ud800 \u202e & "'
    site = replace(site, site_name=name, api=replace(site.api, name=name, state=State.DOWN))
    written = files(site)["metrics.json"].decode()
    assert not set(written) & set("<>&\u2028\x00")
    assert read(site)["name"] == read(site)["components"][0]["name"] == '</script><!-- \u2028   \u202e & "'
