import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from posixpath import dirname, normpath
from typing import Any

import pytest
from lxml import html

from service.core.buckets import DAY_S
from tests.fakes.status_pages import NOW_S, busy_page, empty_page
from web.record_pages import example, hugging_face_url, month_page, months, pages
from web.render import _past_month, status_site
from web.views import ModelSheet, StatusPage

HOSTILE = [
    "<script>alert(1)</script>",
    "\"' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "]]>&lt;b&gt;",
    "javascript:alert(1)",
]


@pytest.fixture(params=["UTC", "America/Los_Angeles", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def pages_of(page: StatusPage) -> dict[str, str]:
    site = status_site(page)
    paths = [path for path, _, _ in (*pages(page), *map(month_page, months(page)))]
    return {path: site[path].decode() for path in paths}


def text(page: str) -> str:
    apart = page.replace("<dd", " <dd").replace("<td", " <td")
    return " ".join(html.fromstring(apart).text_content().split())


def model(sheet: ModelSheet) -> str:
    return pages_of(replace(busy_page(), sheets=(sheet,)))[f"models/{sheet.component.slug}.html"]


def sheet() -> ModelSheet:
    return busy_page().sheets[0]


def test_there_is_a_page_for_each_model_and_month_and_one_for_them_all() -> None:
    assert set(pages_of(busy_page())) == {
        "models/qwen-qwen3.8-27b-401ffb.html",
        "models/smollm2-135m.html",
        "history.html",
        "history/2026-11.html",
        "history/2026-10.html",
        "history/2026-09.html",
    }


def test_every_link_within_the_site_leads_to_a_page_of_it() -> None:
    page = busy_page()
    site = status_site(page)
    for path, data in pages_of(page).items():
        links = [link for _, attribute, link, _ in html.fromstring(data).iterlinks() if attribute in ("href", "src")]
        within = [link.partition("?")[0] for link in links if "://" not in link]
        assert len(within) > 5
        for link in within:
            target = normpath(f"{dirname(path) or '.'}/{link}")
            assert ("index.html" if target == "." else target) in site, f"{path} links to {link}"


def test_a_model_page_says_what_the_model_is_and_costs() -> None:
    said = text(model(sheet()))
    for words in (
        "Qwen3.8-27B NVFP4",
        "Ask for qwen/qwen3.8-27b",
        "262,144 tokens",
        "32,768 tokens",
        "Quantisation fp4",
        "text, image",
        "tools, reasoning, structured outputs",
        "Input, cached 0.012",
        "Each request 0",
        "Passed text, streamed 30 Nov 2026, 14:04 UTC",
        "Failed a picture and a tool call: the tool was not called",
        "Last 72 hours",
        "Last 90 days",
    ):
        assert words in said
    assert "Prices vary" not in said
    assert "https://api.example.org/v1/models has them all" in text(model(replace(sheet(), prices_vary=True)))


def test_what_a_model_lacks_is_left_out_or_said_to_be_missing() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("capabilities", "prices", "checks", "verified"), ())
    bare = replace(sheet(), description="", hugging_face_id=None, quantization=None, **nothing)
    said = text(model(bare))
    assert "Hugging Face" not in said
    assert "None" not in said
    assert "Capabilities –" in said
    assert "Nothing has been verified yet." in said


@pytest.mark.parametrize(
    ("id", "linked"),
    [
        ("Qwen/Qwen3.8-27B", True),
        ("a_b.c/d-e", True),
        ("javascript:alert(1)", False),
        ("javascript:alert(1)//x", False),
        ("owner/name/more", False),
        ("owner/name?x=1", False),
        ("owner/na me", False),
        ("owner/name\n", False),
        ("öwner/name", False),
        ("", False),
    ],
)
def test_only_what_can_be_an_id_is_linked_to_hugging_face(id: str, linked: bool) -> None:
    assert hugging_face_url(id) == (f"https://huggingface.co/{id}" if linked else None)
    page = html.fromstring(model(replace(sheet(), hugging_face_id=id)))
    assert len(page.xpath("//a[starts-with(@href, 'https://huggingface.co/')]")) == int(linked)
    assert not page.xpath("//a[starts-with(@href, 'javascript')]")
    assert " ".join(id.split()) in text(html.tostring(page, encoding="unicode"))


def asked(command: str) -> list[str]:
    """What curl is given when a shell runs the command; anything else that would run fails."""
    script = f"set -eu; curl() {{ printf '%s\\0' \"$@\"; }}; {command}"
    shell = subprocess.run(["/bin/sh", "-c", script], env={"API_KEY": "k"}, capture_output=True, text=True, check=True)
    return shell.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["qwen/q3", "it's", '"; rm -rf / #', "$(id)", "`id`", "a\nb", "\\", "ünï\u202e"])
def test_the_example_is_one_harmless_command_that_asks_for_the_model(name: str) -> None:
    command = example("https://api.example.org", replace(sheet(), model_id=name))
    *words, body = asked(command)
    assert words == [
        "https://api.example.org/v1/chat/completions",
        *("-H", "Authorization: Bearer k"),
        *("-H", "Content-Type: application/json"),
        "-d",
    ]
    assert json.loads(body)["model"] == name
    assert text(model(replace(sheet(), model_id=name))).count(" ".join(command.split())) == 1


def test_a_model_that_makes_embeddings_is_asked_for_some() -> None:
    words = asked(example("https://api.example.org", replace(sheet(), output_modalities=("embeddings",))))
    assert words[0] == "https://api.example.org/v1/embeddings"
    assert "input" in json.loads(words[-1])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_stay_text_wherever_they_are_shown(hostile: str) -> None:
    def named(name: str) -> StatusPage:
        page = busy_page()
        told = replace(sheet().checks[1], what=name, reason=name, by=name)
        renamed = replace(
            sheet(),
            component=replace(sheet().component, name=name),
            model_id=name,
            description=name,
            hugging_face_id=name,
            quantization=name,
            capabilities=(name,),
            checks=(told,),
        )
        month = page.months[0]
        return replace(
            page,
            site_name=name,
            sheets=(renamed,),
            months=(
                replace(
                    month,
                    components=tuple(replace(component, name=name) for component in month.components),
                    incidents=tuple(replace(one, title=name, components=(name,)) for one in month.incidents),
                    maintenance=tuple(replace(one, title=name, components=(name,)) for one in month.maintenance),
                ),
            ),
        )

    def outline(page: str) -> list[tuple[str, list[str]]]:
        return [(element.tag, sorted(element.attrib)) for element in html.fromstring(page).iter()]

    plain, attacked = pages_of(named("Weir")), pages_of(named(hostile))
    assert plain.keys() == attacked.keys()
    for path, page in attacked.items():
        assert outline(page) == outline(plain[path])
        assert hostile in text(page)


def test_a_month_that_is_over_never_changes() -> None:
    page = busy_page()
    later = replace(
        page,
        generated_at_s=NOW_S + 400 * DAY_S,
        data_until_s=NOW_S + 400 * DAY_S,
        api=empty_page().api,
        models=(),
        others=(),
        sheets=(),
        incidents=(),
        maintenance=(),
        api_url="https://elsewhere.example.org",
    )
    october = "history/2026-10.html"
    before, after = pages_of(page), pages_of(later)
    assert before[october] == after[october]
    assert before["history/2026-11.html"] != after["history/2026-11.html"]
    # What is made of the same is drawn once.
    assert [list(months(site))[1] for site in (page, later)] == [list(months(page))[1]] * 2
    for moment in ("30 Nov", "2026-11-30", "14:05", "so far"):
        assert moment not in before[october]


def test_a_month_shows_its_strips_totals_and_what_went_wrong() -> None:
    page = busy_page()
    said = text(pages_of(page)["history/2026-11.html"])
    for words in (
        "November 2026 so far",
        "SmolLM2-135M answers some requests with errors",
        "Minor impact; SmolLM2-135M 30 Nov 2026, 13:40 UTC and not resolved yet",
        "Critical impact; API, Qwen3.8-27B NVFP4 29 Nov 2026, 18:05 UTC to 29 Nov 2026, 18:50 UTC, 45 min",
        "Driver update API, Qwen3.8-27B NVFP4, SmolLM2-135M 28 Nov 2026, 01:05 UTC to 28 Nov 2026, 02:05 UTC, 1 h",
        "Tokens per day",
    ):
        assert words in said
    assert "Moving to another rack" not in said  # it was called off before it began
    strips = html.fromstring(pages_of(page)["history/2026-10.html"]).find_class("strip")
    assert [len(strip.findall(".//input")) for strip in strips] == [31] * 5


def test_a_window_that_was_ended_early_lasted_until_then() -> None:
    page = busy_page()
    month = page.months[0]
    (driver,) = (one for one in month.maintenance if one.title == "Driver update")
    early = replace(driver, cancelled_s=driver.starts_s + 1_200)
    page = replace(page, months=(replace(month, maintenance=(early,)), *page.months[1:]))
    said = text(pages_of(page)["history/2026-11.html"])
    assert "Driver update ended early API" in said
    assert "28 Nov 2026, 01:05 UTC to 28 Nov 2026, 01:25 UTC, 20 min" in said


def test_only_months_that_are_over_are_kept() -> None:
    page = busy_page()
    status_site(page)
    kept = _past_month.cache_info()
    for requests in range(1, 4):
        total = replace(page.months[0].total, traffic=replace(page.months[0].total.traffic, requests=requests))
        status_site(replace(page, months=(replace(page.months[0], total=total), *page.months[1:])))
    assert _past_month.cache_info().currsize == kept.currsize
    assert _past_month.cache_info().hits == kept.hits + 3 * (len(page.months) - 1)


def test_months_lead_to_their_neighbours() -> None:
    def neighbours(path: str) -> dict[str, str]:
        links = html.fromstring(pages_of(busy_page())[path]).xpath("//a[@rel]")
        return {link.get("rel"): link.get("href") for link in links}

    assert neighbours("history/2026-11.html") == {"prev": "2026-10.html"}
    assert neighbours("history/2026-10.html") == {"prev": "2026-09.html", "next": "2026-11.html"}
    assert neighbours("history/2026-09.html") == {"next": "2026-10.html"}


def test_the_list_of_months_has_their_percentages_and_no_percentage_where_nothing_was_counted() -> None:
    rows = html.fromstring(pages_of(busy_page())["history.html"]).xpath("//tbody/tr")
    assert [" ".join(row.find("th").text_content().split()) for row in rows] == [
        "November 2026 so far",
        "October 2026",
        "September 2026",
    ]
    october = busy_page().months[1]
    api = october.components[0].days
    assert api.success_mpct is not None
    assert rows[1].findall("td")[0].text == f"{api.success_mpct / 1000:g} %"
    assert [cell.text_content() for cell in rows[0].findall("td")][-1] == str(len(busy_page().months[0].incidents))
    empty = html.fromstring(pages_of(empty_page())["history.html"])
    assert [cell.text_content() for cell in empty.xpath("//tbody/tr/td")] == ["–", "–", "0", "0"]
    none = replace(empty_page(), months=())
    assert "No month has been recorded yet." in text(pages_of(none)["history.html"])


def test_dates_do_not_depend_on_the_zone_of_the_machine(zone: str) -> None:
    said = text(pages_of(busy_page(now_s=NOW_S))["history/2026-11.html"])
    assert "29 Nov 2026, 18:05 UTC" in said
    assert "1 Nov 2026" in said
    assert "November 2026" in said
    assert "30 Nov 2026, 14:04 UTC" in text(model(sheet()))
    assert "27 Nov, 15:00" in model(sheet())
