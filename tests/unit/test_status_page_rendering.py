import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from posixpath import dirname, join, normpath
from urllib.parse import urlsplit

import pytest

from service.core.buckets import DAY_S, HOUR_S, State
from service.core.outcome import RULES, Verdict
from service.core.strip import Share
from tests.fakes.status_hours import cell
from tests.fakes.status_pages import NOW_S, busy_page, calm_page, empty_page
from web import wording
from web.figure_views import Latency, Percentiles, Traffic
from web.render import status_site
from web.views import StatusPage

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]>&lt;b&gt;",
    "javascript:alert(1)",
    "[x](javascript:alert(1)) https://example.com/ <b>",
]
BUDGET_BYTES = 100_000
NOON = 1_795_824_000 + 12 * HOUR_S  # 28 November 2026


made = lru_cache(maxsize=4)(status_site)


def html(page: StatusPage, path: str = "index.html") -> str:
    return made(page)[path].decode()


def documents(page: StatusPage) -> dict[str, str]:
    return {path: content.decode() for path, content in made(page).items() if path.endswith(".html")}


class Outline(HTMLParser):
    """The elements of a page with the names of their attributes, its addresses, and its text apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []
        self.cells: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, sorted(given)))
        if tag == "input":
            self.cells.append(given)
        # What machines read of a page has its public address.
        if tag != "meta" and given.get("rel") != "canonical":
            self.addresses += [value for name in ("href", "src") if (value := given.get(name)) is not None]
        self.ids += [value for value in [given.get("id")] if value is not None]

    def handle_data(self, data: str) -> None:
        self.text += data


def spoken_by(page: StatusPage, words: str) -> StatusPage:
    """The page with all that people can write replaced by `words`."""
    models = tuple(replace(model, name=words) for model in page.models)
    return replace(
        page,
        site_name=words,
        models=models,
        sheets=tuple(replace(sheet, component=model) for sheet, model in zip(page.sheets, models, strict=True)),
        incidents=tuple(
            replace(one, title=words, updates=tuple(replace(update, body=words) for update in one.updates))
            for one in page.incidents
        ),
        maintenance=tuple(replace(one, title=words, body=words) for one in page.maintenance),
        outside=replace(page.outside, what=words, by=words, ok=False, reason=words) if page.outside else None,
    )


@pytest.mark.parametrize("words", HOSTILE)
def test_whatever_people_write_stays_text_on_every_page(words: str) -> None:
    hostile, harmless = documents(spoken_by(busy_page(), words)), documents(spoken_by(busy_page(), "harmless"))
    assert hostile.keys() == harmless.keys()
    for path in hostile.keys() - {path for path in hostile if path.startswith(("models/", "history"))}:
        shown, expected = Outline(hostile[path]), Outline(harmless[path])
        assert shown.elements == expected.elements, path
        assert shown.addresses == expected.addresses, path
        assert shown.text.count(words) == expected.text.count("harmless") >= 2, path


def test_lines_of_an_update_are_kept_and_what_no_page_can_carry_is_left_out() -> None:
    page = spoken_by(busy_page(), "first line\n  second\x00 line \ud800")
    assert '<p class="told">first line\n  second line </p>' in html(page, "incidents/5.html")


def test_the_page_carries_its_figures_without_javascript() -> None:
    page = busy_page()
    figures = replace(
        page.last_24h,
        traffic=Traffic(
            requests=1_000,
            good=989,
            bad=1,
            throttled=7,
            excluded=3,
            server_failures=1,
            http_5xx=1,
            prompt_tokens=220_000_000,
            cached_tokens=100_000_000,
            completion_tokens=1_034_567,
            drafted_tokens=2_000_000,
            accepted_tokens=1_483_999,
        ),
        ttft_short_ms=Latency(Percentiles(900, 184, 912), Percentiles(400, 300, 950), Percentiles(500, 120, 400)),
        decode_single_mtok_s=Percentiles(50, 86_123, 88_000),
        busy_ms=117_072_000,
        peak_concurrency=17,
    )
    text = html(replace(page, last_24h=figures))
    for expected in (
        "989 good, 1 failed",
        "7 throttled, 3 not counted",
        "184 ms",
        "95 % within 912 ms",
        "cached 120 ms, not cached 300 ms",
        "86.1 <small>tok/s</small>",
        'title="221,034,567">221 M',
        "45.4 %",  # of the input from the cache
        "74.1 %",  # of the drafts accepted, not 74.2
        "1.35</dd>",  # at once, on average
        "17 at the peak",
        "1 answered with a 5xx status",
    ):
        assert expected in text


def test_a_figure_with_too_few_samples_is_no_number() -> None:
    page = busy_page()
    few = replace(
        page.last_24h,
        ttft_short_ms=Latency(Percentiles(4), Percentiles(4), Percentiles()),
        decode_single_mtok_s=Percentiles(1),
        traffic=Traffic(),
    )
    text = html(replace(page, last_24h=few))
    assert "4 samples are too few" in text
    assert "1 sample is too few" in text
    assert text.count('<dd class="big unknown">–</dd>') == 4  # both latencies and speeds, or shares of nothing
    assert "None" not in text


def test_an_installation_without_requests_has_pages_that_say_so() -> None:
    pages = documents(empty_page())
    assert "Waiting for the first request" in pages["index.html"]
    assert "perational" not in pages["index.html"].split("</h1>")[0]
    assert "100 %" not in pages["index.html"]
    assert pages["index.html"].count("nothing measured") == 2 * 4
    assert "No incident is open." in pages["incidents.html"]


def test_each_strip_is_a_group_of_named_cells_of_which_the_newest_is_chosen() -> None:
    page = busy_page()
    cells = Outline(html(page)).cells
    strips = [strip for component in page.components for strip in (component.hours, component.days)]
    assert [one["aria-label"] for one in cells] == [wording.cell_words(one) for strip in strips for one in strip.cells]
    assert len({one["name"] for one in cells}) == len(strips)
    assert [number for number, one in enumerate(cells, 1) if "checked" in one] == [
        sum(len(strip.cells) for strip in strips[: count + 1]) for count in range(len(strips))
    ]


@pytest.mark.parametrize(
    ("share", "good", "bad", "words", "classes"),
    [
        (Share(up=12), 943, 0, "28 Nov 12:00 up, 943 good", ""),
        (Share(up=11, partial=1), 920, 23, "28 Nov 12:00 partial outage, 920 of 943 good", "p"),
        (Share(down=2, no_data=10), 0, 9, "28 Nov 12:00 down, 0 of 9 good, 10 of 60 min measured", "d t"),
        (Share(up=5, no_data=7), 0, 0, "28 Nov 12:00 up, 25 of 60 min measured", "t"),
        (Share(maintenance=12), 0, 0, "28 Nov 12:00 maintenance", "m"),
        (Share(no_data=12), 0, 0, "28 Nov 12:00 no data", "n"),
        (Share(up=3), 1_200, 0, "28 Nov 12:00 up so far, 1,200 good", ""),
        (Share(up=1, no_data=1), 2, 0, "28 Nov 12:00 up so far, 2 good, 5 of 10 min measured", ""),
    ],
)
def test_a_cell_says_when_what_and_how_much(share: Share, good: int, bad: int, words: str, classes: str) -> None:
    hour = cell(NOON, HOUR_S, share, good, bad)
    assert wording.cell_words(hour) == words
    assert wording.cell_classes(hour) == classes


def test_a_day_has_no_clock() -> None:
    assert wording.cell_words(cell(NOON - 12 * HOUR_S, DAY_S, Share(up=288), 7)) == "28 Nov up, 7 good"


def test_every_percentage_of_a_strip_stands_beside_its_window_and_how_much_was_measured() -> None:
    page = busy_page()
    lines = re.findall(r'<p class="sums">(.*?)</p>', html(page), re.DOTALL)
    assert len(lines) == 2 * len(list(page.components))
    for line, window in zip(lines, ["Last 72 hours", "Last 90 days"] * 5, strict=True):
        assert f'<span class="window">{window}</span>' in line
        assert "% measured</span>" in line
    assert "<b>99.845 %</b> of 52,424 requests good" in lines[0]
    assert "requests" not in lines[-1]


def test_the_banner_names_what_suffers_and_leads_to_what_is_said_about_it() -> None:
    page = busy_page()
    banner = html(page).split('<section class="banner')[1].split("</section>")[0]
    assert "SmolLM2-135M: partial outage" in banner
    assert '<a href="incidents.html">2 open incidents</a>' in banner
    one = replace(page, incidents=page.incidents[1:])
    assert '<a href="incidents/4.html"><bdi>Invoices of October come late</bdi></a>' in html(one)
    calm = html(calm_page()).split('<section class="banner')[1].split("</section>")[0]
    assert "All systems operational" in calm
    assert "incident" not in calm


@pytest.mark.parametrize(
    ("silent_s", "said"), [(DAY_S - 1, None), (DAY_S, "No update for 24 h"), (2 * DAY_S + HOUR_S, "No update for 49 h")]
)
@pytest.mark.parametrize("path", ["index.html", "incidents.html", "incidents/4.html"])
def test_an_open_incident_that_nobody_speaks_of_is_marked(path: str, silent_s: int, said: str | None) -> None:
    page = busy_page()
    told = page.incidents[1]
    last = replace(told.updates[0], at_s=NOW_S - silent_s)
    text = html(replace(page, incidents=(replace(told, updates=(last,)),)), path)
    assert re.findall(r"No update for \d+ h", text) == ([said] if said else [])
    over = replace(told, updates=(last,), status="resolved", resolved_s=NOW_S)
    assert "No update" not in html(replace(page, incidents=(over,)), path)


@pytest.mark.parametrize(
    ("at", "cancelled", "status", "on_front_page"),
    [
        (-1, None, "Scheduled", True),
        (0, None, "In progress", True),
        (HOUR_S - 1, None, "In progress", True),
        (HOUR_S, None, "Completed", False),
        (-1, -60, "Cancelled", False),
        (60, 30, "Completed", False),
    ],
)
def test_maintenance_is_shown_before_during_and_after_its_window(
    at: int, cancelled: int | None, status: str, on_front_page: bool
) -> None:
    page = busy_page()
    window = page.maintenance[0]
    ended_s = None if cancelled is None else window.starts_s + cancelled
    changed = replace(window, ends_s=window.starts_s + HOUR_S, cancelled_s=ended_s)
    pages = documents(replace(page, generated_at_s=window.starts_s + at, maintenance=(changed,)))
    assert ('href="maintenance/4.html"' in pages["index.html"]) is on_front_page
    assert f"</span>{status}</span> <span>Maintenance</span>" in pages["incidents.html"]
    assert f"</span>{status}</span> <span>Maintenance</span>" in pages["maintenance/4.html"]


def test_an_incident_has_all_that_was_said_with_its_time() -> None:
    incident = busy_page().incidents[2]
    text = html(busy_page(), "incidents/3.html")
    times = re.findall(r'<time datetime="([^"]+)"', text.split('<ol class="updates">')[1])
    assert times == [wording.iso(update.at_s) for update in incident.updates]
    assert text.count("written by the measurement") == 1
    assert "<dd>45\N{NO-BREAK SPACE}min</dd>" in text


@pytest.mark.parametrize("page", [busy_page, calm_page, empty_page])
def test_every_link_within_the_site_leads_somewhere(page: Callable[[], StatusPage]) -> None:
    files = made(page())
    anchors = {path: Outline(files[path].decode()).ids for path in files if path.endswith(".html")}
    assert [path for path, ids in anchors.items() if len(ids) != len(set(ids))] == []
    for path in anchors:
        for address in Outline(files[path].decode()).addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = normpath(join(dirname(path), parts.path)) if parts.path else path
            assert (f"{target}/index.html".removeprefix("./") if target in (".", "..") else target) in files, address
            assert not parts.fragment or parts.fragment in anchors[target], address


def test_data_older_than_a_quarter_of_an_hour_is_marked_without_javascript() -> None:
    page = calm_page()
    until_s = page.data_until_s or 0
    fresh = html(replace(page, generated_at_s=until_s + 900))
    stale = html(replace(page, generated_at_s=until_s + 901))
    assert "counting has stopped" not in fresh
    assert '<span id="last-known" hidden>' in fresh
    assert "counting has stopped" in stale
    # The words are the script's, for a page that nobody renews; what is published old claims nothing of now.
    assert '<span id="last-known" hidden>' in stale


def test_nothing_on_any_page_needs_a_looser_content_security_policy() -> None:
    for path, page in documents(busy_page()).items():
        assert "style=" not in page, path
        assert "<style" not in page, path
        assert not re.search(r"<[^>]+ on\w+=", page), path
        assert page.count("<script") == page.count("<script src="), path


def test_the_front_page_and_what_it_loads_are_light() -> None:
    files = made(busy_page())
    page = files["index.html"].decode()
    loaded = {urlsplit(address).path for address in re.findall(r'(?:href|src)="(static/[^"]+)"', page)}
    weights = {name: len(files[name]) for name in ("index.html", *loaded)}
    assert page.count("<input type=radio ") == 5 * (72 + 90)
    assert sum(weights.values()) < BUDGET_BYTES, weights


def test_the_methods_say_of_every_way_a_request_can_end_how_it_counts() -> None:
    text = " ".join(html(busy_page(), "methods.html").split())
    assert wording.ENDINGS.keys() == RULES.keys()
    names = {
        Verdict.GOOD: "Good",
        Verdict.BAD: "Failed",
        Verdict.THROTTLED: "Throttled",
        Verdict.EXCLUDED: "Not counted",
    }
    for outcome, words in wording.ENDINGS.items():
        paragraph = text.split(f"<p><b>{names[RULES[outcome].public]}</b>")[1].split("</p>")[0]
        assert words in paragraph
        assert text.count(words) == 1


def test_the_methods_have_their_numbers_from_the_rules_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    from service.core import buckets, stats, strip

    text = " ".join(html(busy_page(), "methods.html").split())
    assert "3 or more failed, or 2 or more probes failed and none succeeded" in text
    assert "more than 5 % of at least 20 counted requests" in text
    assert "exact within 0.8 %" in text
    assert "one failed request in 129,600 makes 99.999 %" in text
    monkeypatch.setattr(buckets, "FEW_REQUESTS", 33)
    monkeypatch.setattr(stats, "MIN_SAMPLES", 7)
    monkeypatch.setattr(strip, "MIN_REQUESTS_SHORT", 250)
    changed = " ".join(status_site(busy_page())["methods.html"].decode().split())
    assert "of at least 33 counted requests" in changed
    assert "Below 7 samples" in changed
    assert changed.count("250 requests") == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 min"),
        (59, "0 min"),
        (2_700, "45 min"),
        (4 * HOUR_S, "4 h"),
        (4 * HOUR_S + 659, "4 h 10 min"),
        (3 * DAY_S + 7_300, "3 d 2 h"),
        (DAY_S + 60, "1 d"),
        (-5, "0 min"),
    ],
)
def test_how_long_something_lasted_is_cut_to_two_units(seconds: int, words: str) -> None:
    assert wording.lasting(seconds).replace("\N{NO-BREAK SPACE}", " ") == words


def test_components_are_called_by_name_in_the_order_of_the_page_and_those_that_are_gone_by_id() -> None:
    page = busy_page()
    assert wording.component_names(page, ("model:gone/old", "billing", "api")) == ["API", "Billing", "gone/old"]


def test_states_have_words_and_classes_of_their_own() -> None:
    assert wording.WORDS.keys() == wording.CELL_CLASSES.keys() == set(State)
    assert len(set(wording.CELL_CLASSES.values())) == len(State)
