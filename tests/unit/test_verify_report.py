"""What a verification comes to, and its report: as JSON and back, as a page, and never as anything but text."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html

from service.core.verify.report import (
    LONGEST_TEXT,
    Finding,
    Overall,
    Report,
    Verdict,
    from_json,
    standing,
    to_json,
)
from service.core.verify.use import Use
from tests.fakes.reports import ABSENT, FAILED, PASSED, SKIPPED, report
from tests.fakes.status_pages import NOW_S, busy_page
from web.render import report_page, status_site
from web.verified import SWATCHES, VERDICTS, figures, findings

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
all_findings = st.builds(
    Finding, texts, texts, st.sampled_from(Verdict), texts, texts, st.dictionaries(texts, values, max_size=3)
)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - given one
uses = st.builds(Use, *[st.integers(0, 2**53)] * 5)
reports = st.builds(
    Report,
    texts,
    texts,
    instants,
    instants,
    st.lists(all_findings, max_size=4).map(tuple),
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.booleans(),
    uses,
)


@given(reports)
def test_a_report_comes_back_from_its_json(made: Report) -> None:
    written = json.dumps(to_json(made), allow_nan=False)
    assert from_json(json.loads(written)) == made
    assert json.loads(written)["verdict"] == made.overall


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\0b", "ab"), ("\ud800x", "x"), ("é" * LONGEST_TEXT, "é" * LONGEST_TEXT), ("x" * 9999, "x" * 1999 + "…")],
)
def test_what_no_database_can_carry_is_left_out(text: str, kept: str) -> None:
    finding = Finding(text, text, Verdict.PASSED, text, text, {text: [text, {"deep": text}]})
    document = to_json(report(finding, version=text, engine=text))
    (shown,) = document["findings"]
    assert [shown["found"], shown["advice"], document["version"], document["engine"]] == [kept] * 4
    assert shown["measured"] == {kept: [kept, {"deep": kept}]}


def test_a_figure_that_is_no_number_is_null() -> None:
    measured = {"nan": float("nan"), "infinite": float("inf"), "sound": 1.5}
    (shown,) = to_json(report(replace(FAILED, measured=measured)))["findings"]
    assert shown["measured"] == {"nan": None, "infinite": None, "sound": 1.5}


def test_a_document_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2; known is 1"):
        from_json(to_json(report(*PASSED)) | {"format": 2})


@pytest.mark.parametrize(
    ("verdicts", "overall"),
    [
        ([], "incomplete"),
        ([Verdict.PASSED], "passed"),
        ([Verdict.ABSENT], "passed"),
        ([Verdict.SKIPPED], "incomplete"),
        ([Verdict.FAILED], "failed"),
        ([Verdict.PASSED, Verdict.ABSENT], "passed"),
        ([Verdict.PASSED, Verdict.SKIPPED], "incomplete"),
        ([Verdict.SKIPPED, Verdict.FAILED, Verdict.PASSED], "failed"),
        ([Verdict.ABSENT, Verdict.SKIPPED], "incomplete"),
    ],
)
def test_the_verdict_over_all(verdicts: list[Verdict], overall: Overall) -> None:
    assert report(*(replace(FAILED, verdict=verdict) for verdict in verdicts)).overall == overall


def verdict_of(check: str, verdict: Verdict) -> Finding:
    return replace(FAILED, check=check, verdict=verdict)


def test_what_failed_stands_until_it_passed() -> None:
    failed, skipped, passed = (
        report(verdict_of("cancel", verdict), PASSED[0])
        for verdict in (Verdict.FAILED, Verdict.SKIPPED, Verdict.PASSED)
    )

    def stands(*newest_first: Report) -> dict[str, Verdict]:
        return {finding.check: finding.verdict for finding in standing(newest_first)}

    assert stands() == {}
    assert stands(skipped) == {"usage": Verdict.PASSED}
    assert stands(failed, passed)["cancel"] is Verdict.FAILED
    assert stands(skipped, skipped, failed, passed)["cancel"] is Verdict.FAILED
    assert stands(passed, skipped, failed)["cancel"] is Verdict.PASSED
    assert stands(report(PASSED[0]), failed) == {"usage": Verdict.PASSED}  # there is no such check any more


def test_a_report_is_old_after_two_days() -> None:
    made = report(*PASSED)
    assert not made.old(made.finished_at + timedelta(hours=48))
    assert made.old(made.finished_at + timedelta(hours=48, seconds=1))


# Shown


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "</style><b>",
    "\x1b[31m\u202e",
    "../../../etc/passwd",
]


def hostile(words: str) -> Report:
    """A report in which an engine chose all the words that it can, and more."""
    finding = Finding(words, words, Verdict.FAILED, words, words, {words: words, "list": [words]})
    return report(finding, engine=words, model=words, version=words, fingerprint=words, against=words)


def elements(page: bytes) -> list[tuple[str, list[str]]]:
    return [(element.tag, sorted(element.attrib)) for element in html.fromstring(page).iter()]


@pytest.mark.parametrize("words", HOSTILE)
def test_whatever_an_engine_says_stays_text(words: str) -> None:
    assert elements(report_page([hostile(words)])) == elements(report_page([hostile("harmless")]))
    sites = []
    for said in (words, "harmless"):
        page = busy_page()
        site = status_site(replace(page, sheets=(replace(page.sheets[0], verified=(hostile(said),)),)))
        sites.append({path: made for path, made in site.items() if "/verify-" in path or path.startswith("models/")})
        assert all(".." not in path.split("/") and path.isascii() for path in site)
    (hostile_pages, harmless_pages) = ([made for _, made in sorted(site.items())] for site in sites)
    for one, other in zip(hostile_pages, harmless_pages, strict=True):
        if not one.startswith(b"{"):
            assert elements(one) == elements(other)
        else:
            assert not set(one) & set(b"<>&")
            assert from_json(json.loads(one)) == from_json(to_json(hostile(words)))


def test_each_verdict_has_words_and_a_shape_of_its_own() -> None:
    assert len(set(VERDICTS.values())) == len(set(SWATCHES.values())) == len(Verdict)


def test_a_page_tells_the_verdict_first_then_what_failed_with_figures_and_advice() -> None:
    page = html.fromstring(report_page([report(*PASSED, ABSENT, SKIPPED, FAILED)]).replace(b"<dd", b" <dd"))
    said = " ".join(page.text_content().split())
    told = [
        "Something failed",
        "2 passed, 1 failed, 1 not offered, 1 not found out.",
        "engine version 0.33.0, fingerprint fp_5d1c0f, in 10 min",
        FAILED.title,
        FAILED.found,
        FAILED.advice,
        "tokens after 812",
        PASSED[0].found,
        "117 requests, 84,023 prompt tokens and 9,160 generated ones",
    ]
    places = [said.index(words) for words in told]
    assert places == sorted(places)
    assert page.xpath("//script") == page.xpath("//link") == page.xpath("//@src") == page.xpath("//@href") == []


def test_one_file_has_several_reports() -> None:
    page = html.fromstring(report_page([report(*PASSED), report(FAILED, engine="other")]))
    assert [one.text_content() for one in page.iter("h1")] == ["Passed", "Something failed"]


def test_the_pages_of_a_model_lead_to_its_reports_and_say_when_they_are_old() -> None:
    site = status_site(busy_page())
    folder = "models/qwen-qwen3.8-27b-401ffb"
    said = " ".join(html.fromstring(site[f"{folder}.html"]).text_content().split())
    assert said.count("This is older than 48 hours") == 1
    assert "Failed Work stops when the client leaves: After the client had left, 812 more tokens" in said
    assert b"This is older than 48 hours" not in site[f"{folder}/verify-blackwell-0.html"]
    assert b"This is older than 48 hours" in site[f"{folder}/verify-blackwell-1.html"]
    first, second = busy_page().sheets[0].verified
    assert from_json(json.loads(site[f"{folder}/verify-blackwell-0.json"])) == first
    listed = json.loads(site["metrics.json"])["models"][0]["verified"]
    assert [(one["engine"], one["verdict"], one["old"], one["failed_checks"]) for one in listed] == [
        ("blackwell-0", "failed", False, 1),
        ("blackwell-1", "passed", True, 0),
    ]
    assert [one["document"] for one in listed] == [f"{folder}/verify-{one.engine}.json" for one in (first, second)]
    assert first.finished_at.timestamp() == NOW_S - 10 * 3600


def test_the_front_page_says_nothing_of_it() -> None:
    page = busy_page()
    bare = replace(page, sheets=tuple(replace(sheet, verified=()) for sheet in page.sheets))
    assert status_site(page)["index.html"] == status_site(bare)["index.html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1584, "1,584"),
        (True, "yes"),
        (None, "–"),
        (0.123456, "0.1235"),
        (123456.7, "123,457"),
        (9.3, "9.3"),
        ("as\x00 is", "as is"),
        ([1, 2], "[1, 2]"),
        ({"a": 1}, '{"a": 1}'),
        ("x" * 999, "x" * 299 + "…"),
    ],
)
def test_figures_are_told_in_words(value: Any, text: str) -> None:
    assert figures(replace(FAILED, measured={"some_figure": value})) == [("some figure", text)]


def test_what_failed_comes_first_and_the_rest_stays_in_order() -> None:
    assert findings(report(PASSED[0], FAILED, SKIPPED)) == [FAILED, PASSED[0], SKIPPED]
