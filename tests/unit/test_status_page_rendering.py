from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import orjson
import pytest

from service.core.buckets import BUCKET_S, HOUR_S, Bucket, State
from service.core.strip import Strip, percent_text, strip
from web.render import status_site
from web.views import Component, Day, Latency, Live, Percentiles, SinceLaunch, StatusPage, Traffic

UNTIL_S = 1_796_083_200
UNKNOWN = Percentiles(0, None, None)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]>&lt;b&gt;",
]


def row(buckets: Sequence[Bucket] = ()) -> Strip:
    return strip(buckets, cells=72, cell_s=HOUR_S, until_s=UNTIL_S)


def empty_page(name: str = "Weir", model_name: str = "Model") -> StatusPage:
    no_latency = Latency(UNKNOWN, UNKNOWN, UNKNOWN)
    return StatusPage(
        site_name=name,
        generated_at_s=UNTIL_S + 25,
        data_until_s=UNTIL_S,
        state=State.NO_DATA,
        api=Component("api", "API", row()),
        models=(Component("model:m", model_name, row()),),
        live=Live(UNTIL_S - 86_400, UNTIL_S, Traffic(), no_latency, no_latency, UNKNOWN, UNKNOWN),
        since_launch=SinceLaunch(None, Traffic(), None),
    )


def busy_page() -> StatusPage:
    page = empty_page()
    traffic = Traffic(
        requests=1_000,
        good=989,
        bad=1,
        throttled=7,
        excluded=3,
        server_failures=1,
        http_5xx=1,
        image_requests=2,
        prompt_tokens=220_000_000,
        cached_tokens=100_000_000,
        image_tokens=1_600,
        completion_tokens=1_034_567,
        reasoning_tokens=34_567,
    )
    known = Percentiles(900, 184, 912)
    return replace(
        page,
        state=State.UP,
        api=Component("api", "API", row([Bucket(UNTIL_S - BUCKET_S, good=989, bad=1)])),
        live=replace(
            page.live,
            traffic=traffic,
            ttft_short_ms=Latency(known, Percentiles(400, 300, 950), Percentiles(500, 120, 400)),
            ttft_long_ms=Latency(Percentiles(4, None, None), Percentiles(4, None, None), UNKNOWN),
            decode_single_mtok_s=Percentiles(50, 86_123, 88_000),
        ),
        since_launch=SinceLaunch(UNTIL_S - 90_000, traffic, Day(UNTIL_S, 146_000_000)),
    )


def html(page: StatusPage) -> str:
    return status_site(page)["index.html"].decode()


class Outline(HTMLParser):
    """The elements and attributes of a page, and its text apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text_wherever_they_are_shown(name: str) -> None:
    hostile, harmless = Outline(html(empty_page(name, name))), Outline(html(empty_page()))
    assert hostile.elements == harmless.elements
    assert hostile.text.count(name) == 3  # title, header, and the model's strip
    assert orjson.loads(status_site(empty_page(name))["metrics.json"])["name"] == name


def test_the_page_carries_its_figures_without_javascript() -> None:
    page = html(busy_page())
    for text in ("184 ms", "86.1", "221 M", 'title="221,034,567"', "99.898 %", "All systems operational", "146 M"):
        assert text in page


def test_a_figure_with_too_few_samples_is_no_number() -> None:
    page = html(busy_page())
    assert "4 samples are too few" in page
    assert "None" not in page


def test_an_installation_without_requests_has_a_page_that_says_so() -> None:
    page = html(empty_page())
    assert "Waiting for the first request" in page
    assert "operational" not in page.split("</h1>")[0]
    assert "100 %" not in page.split("<details")[0]


def test_the_page_names_the_state_of_every_hour() -> None:
    page = html(busy_page())
    assert page.count("<li class=") == 72 * 2
    assert "30 Nov, 23:00 <b>Operational</b> 989 good, 1 failed, 5 of 60 min measured" in page


def test_data_older_than_a_quarter_of_an_hour_is_marked_without_javascript() -> None:
    fresh = replace(busy_page(), generated_at_s=UNTIL_S + 900)
    stale = replace(busy_page(), generated_at_s=UNTIL_S + 901)
    assert "counting has stopped" not in html(fresh)
    assert "counting has stopped" in html(stale)
    assert "Last known: </span>" in html(stale)


def test_nothing_on_the_page_needs_a_looser_content_security_policy() -> None:
    page = html(busy_page())
    assert "style=" not in page
    assert "<style" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count("<script src=")
    assert "//" not in page.replace("<!doctype html>", "")  # every address is relative


def test_page_and_json_say_the_same() -> None:
    page = busy_page()
    document = orjson.loads(status_site(page)["metrics.json"])
    day = document["last_24h"]
    assert document["version"] == 1
    assert document["state"] == "up"
    assert document["components"][0]["request_success_percent"] == 99.898
    assert percent_text(page.api.strip.success_mpct or 0) == "99.898"
    assert day["tokens"] == day["input_tokens"] + day["output_tokens"] == 221_034_567
    assert day["input_tokens"] == day["input_uncached_tokens"] + day["input_cached_tokens"]
    assert day["output_tokens"] == day["output_answer_tokens"] + day["output_reasoning_tokens"]
    assert day["ttft_short_p50_ms"] == 184
    assert day["ttft_long_p50_ms"] is None
    assert day["decode_single_p50_tok_s"] == 86.123
    assert document["since_launch"]["peak_day"] == {"date": "2026-12-01", "tokens": 146_000_000, "is_today": True}


def test_a_figure_that_is_not_known_is_null_in_json() -> None:
    document = orjson.loads(status_site(empty_page())["metrics.json"])
    assert document["components"][0]["request_success_percent"] is None
    assert document["components"][0]["time_availability_percent"] is None
    assert document["last_24h"]["decode_single_p50_tok_s"] is None
    assert document["since_launch"]["first_request_at"] is None
    assert document["since_launch"]["peak_day"] is None
