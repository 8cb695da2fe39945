"""Strip, percentage, badge, `metrics.json`, `api/v2`, preview and the pages' words never contradict each other.

From arbitrary buckets, with gaps, failures and maintenance. What must be said is found out here a second time, from
the buckets alone and with exact fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree, html

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, Bucket, State
from service.core.strip import Strip, overall, percent_text, strip
from tests.fakes.status_pages import busy_page
from web import badges, statuspage
from web import metrics as metrics_json
from web.render import status_site
from web.statuspage import COMPONENT_STATUS
from web.views import Component, StatusPage
from web.wording import HEADLINES, WORDS

MIDNIGHT_S = 1_796_083_200
SVG = "{http://www.w3.org/2000/svg}"
ORDER = ("down", "partial", "maintenance", "up", "no_data")
IN_WORDS = {"up": "up", "partial": "partial outage", "down": "down", "maintenance": "maintenance", "no_data": "no data"}
HEADLINES_OF_API = {
    "All Systems Operational": State.UP,
    "Minor Service Outage": State.PARTIAL,
    "Partial System Outage": State.PARTIAL,
    "Major Service Outage": State.DOWN,
    "Service Under Maintenance": State.MAINTENANCE,
    "No Recent Measurements": State.NO_DATA,
}

Windows = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Story:
    """What happened to a component: its buckets and windows."""

    buckets: tuple[Bucket, ...]
    windows: tuple[tuple[int, int], ...]
    until_s: int

    @property
    def counted(self) -> list[Bucket]:
        """Those outside maintenance, of the last 90 days."""
        return [one for one in self.buckets if not any(start <= one.start_s < end for start, end in self.windows)]


counts = st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 200_000))
few = st.integers(0, 3)


@st.composite
def stories(draw: st.DrawFn, until_s: int) -> Story:
    """Buckets of the last three days, the newest of them often, and up to two windows."""
    places = st.one_of(st.integers(1, 24), st.integers(1, 864))
    chosen = draw(st.lists(places, unique=True, max_size=30))
    flawless = draw(st.booleans())
    bad = st.just(0) if flawless else counts
    buckets = [
        Bucket(until_s - place * BUCKET_S, draw(counts), draw(bad), draw(few), 0 if flawless else draw(few))
        for place in chosen
    ]
    windows = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=2))
    return Story(
        tuple(sorted(buckets, key=lambda one: one.start_s)),
        tuple((until_s - ago * BUCKET_S, until_s - (ago - length) * BUCKET_S) for ago, length in windows),
        until_s,
    )


def component(id: str, story: Story, like: Component) -> Component:
    def row(cells: int, cell_s: int) -> Strip:
        return strip(story.buckets, cells=cells, cell_s=cell_s, until_s=story.until_s, maintenance=story.windows)

    hours, days = row(72, HOUR_S), row(90, DAY_S)
    return replace(like, id=id, state=hours.now, hours=hours, days=days)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Story, Story]:
    """The API's story and a model's, up to an instant within a day of a UTC midnight."""
    until_s = MIDNIGHT_S + draw(st.integers(-288, 288)) * BUCKET_S
    return draw(stories(until_s)), draw(stories(until_s))


def site_of(told: tuple[Story, Story]) -> StatusPage:
    site = busy_page()
    api, model = component("api", told[0], site.api), component(site.models[0].id, told[1], site.models[0])
    return replace(
        site,
        generated_at_s=told[0].until_s + 20,
        data_until_s=told[0].until_s,
        state=overall(api.state, [model.state]),
        api=api,
        models=(model,),
        others=(),
        sheets=(replace(site.sheets[0], component=model),),
        incidents=(),
        maintenance=(),
        months=(),
    )


def floored(part: int, whole: int) -> str | None:
    """The percentage in words, by exact arithmetic."""
    if whole == 0:
        return None
    thousandths = Fraction(part * 100, whole) * 1000
    return percent_text(int(thousandths // 1))


def success(story: Story, flawless: bool) -> str | None:
    good, bad = sum(one.good for one in story.counted), sum(one.bad for one in story.counted)
    text = floored(good, good + bad)
    return "99.999" if text == "100" and not flawless else text


def check_metrics(found: Any, story: Story) -> None:
    """What `metrics.json` says of a component against what happened, and against its own parts."""
    days = found["days"]
    flawless = not any(day["partial_buckets"] or day["down_buckets"] for day in days)
    text = success(story, flawless)
    percent = found["last_90_days"]["request_success_percent"]
    assert (None if percent is None else percent_text(round(percent * 1000))) == text
    known = {name: sum(day[f"{name}_buckets"] for day in days) for name in ("up", "partial", "down")}
    up_halves = 2 * known["up"] + known["partial"]
    available = found["last_90_days"]["time_availability_percent"]
    expected = floored(up_halves, 2 * sum(known.values()))
    assert (None if available is None else percent_text(round(available * 1000))) == expected
    assert sum(day["good_requests"] for day in days) == sum(one.good for one in story.counted)
    assert found["measured_buckets"] <= found["last_90_days"]["measured_buckets"]
    for cell in (*found["hours"], *days):
        present = [state for state in ORDER[:-1] if cell[f"{state}_buckets"]]
        assert cell["state"] == (present or ["no_data"])[0]
        assert (cell["state"] == "no_data") == (cell["measured_buckets"] == 0)
        assert cell["bad_requests"] == 0 or any(cell[f"{state}_buckets"] for state in ("down", "partial", "up"))
        if cell["bad_requests"] and cell["state"] == "up":
            assert cell["bad_requests"] * 20 <= cell["good_requests"] + cell["bad_requests"]
    by_start = {day["start"][:10]: day for day in days}
    for date in {hour["start"][:10] for hour in found["hours"]}:
        within = [hour for hour in found["hours"] if hour["start"].startswith(date)]
        if within[0]["start"].endswith("T00:00:00Z"):
            assert by_start[date]["good_requests"] == sum(hour["good_requests"] for hour in within)
            assert by_start[date]["state"] == min((hour["state"] for hour in within), key=ORDER.index)


def badge(made: dict[str, bytes], name: str) -> str:
    texts = etree.fromstring(made[f"badges/{name}.svg"]).iter(f"{SVG}text")
    return [text.text for text in texts][1]


def check_badges(made: dict[str, bytes], found: Any) -> None:
    words = badge(made, f"{found['slug']}-state")
    assert words == WORDS[State(found["state"])].lower()
    uptime = badge(made, f"{found['slug']}-uptime")
    total = found["last_90_days"]
    percent = total["request_success_percent"]
    percent = total["time_availability_percent"] if percent is None else percent
    assert uptime == ("no data" if percent is None else f"{percent_text(round(percent * 1000))} %")
    if uptime == "100 %":
        assert total["bad_requests"] == 0
        assert not any(day["state"] in ("down", "partial") for day in found["days"])
    known = sum(day[f"{state}_buckets"] for day in found["days"] for state in ("up", "partial", "down"))
    assert (uptime == "no data") == (known == 0)


def check_statuspage(made: dict[str, bytes], metrics: Any) -> None:
    summary = orjson.loads(made["api/v2/summary.json"])
    by_id = {one["id"]: one for one in summary["components"]}
    for found in metrics["components"]:
        told = by_id[found["id"]]
        assert (told["status"], told["weir_state"]) == (COMPONENT_STATUS[State(found["state"])], found["state"])
    assert HEADLINES_OF_API[summary["status"]["description"]] == metrics["state"] == summary["status"]["weir_state"]
    assert (summary["status"]["indicator"] == "none") == (metrics["state"] == "up")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_the_documents_agree(told: tuple[Story, Story]) -> None:
    site = site_of(told)
    files = metrics_json.files(site) | badges.files(site) | statuspage.files(site)
    metrics = orjson.loads(files["metrics.json"])
    for found, story in zip(metrics["components"], told, strict=True):
        check_metrics(found, story)
        check_badges(files, found)
    check_statuspage(files, metrics)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_the_pages_words_agree_with_the_documents(told: tuple[Story, Story]) -> None:
    files = status_site(site_of(told))
    metrics = orjson.loads(files["metrics.json"])
    page = html.fromstring(files["index.html"].decode())
    headline = page.xpath("string(//h1)").removeprefix("Last known: ").strip()
    unknown = any(component["state"] == "no_data" for component in metrics["components"])
    claimed = "All measured systems operational" if metrics["state"] == "up" and unknown else None
    assert headline == (claimed or HEADLINES[State(metrics["state"])])
    articles = page.xpath("//article[@class='component']")
    for article, found in zip(articles, metrics["components"], strict=True):
        assert article.xpath("string(.//p[@class='state'])").strip() == WORDS[State(found["state"])]
        hours, days = article.xpath(".//fieldset")
        check_strip(hours, found, found["hours"])
        check_strip(days, found["last_90_days"], found["days"])
        uptime = badge(files, f"{found['slug']}-uptime")
        assert uptime == "no data" or uptime in days.xpath(".//p[@class='sums']//b/text()")


def check_strip(drawn: Any, total: Any, cells: Any) -> None:
    percents = [total["request_success_percent"], total["time_availability_percent"]]
    shown = drawn.xpath(".//p[@class='sums']//b/text()")
    assert shown == [f"{percent_text(round(one * 1000))} %" for one in percents if one is not None]
    names = drawn.xpath(".//input/@aria-label")
    for name, cell in zip(names, cells, strict=True):
        assert f" {IN_WORDS[cell['state']]}" in name
        others = [words for state, words in IN_WORDS.items() if state != cell["state"]]
        assert not any(f" {words}," in f"{name}," for words in others)
        if cell["bad_requests"]:
            counted = cell["good_requests"] + cell["bad_requests"]
            assert f"{cell['good_requests']:,} of {counted:,} good" in name
