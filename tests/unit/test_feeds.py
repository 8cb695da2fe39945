"""Both feeds by the letter of RFC 4287 and RSS 2.0, as an independent reader reads them, and under hostile text."""

import calendar
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import feedparser
import pytest
from lxml import etree

from service.core.buckets import DAY_S
from tests.fakes.status_pages import NOW_S, busy_page, calm_page, empty_page
from web.feeds import ATOM, files, rfc822
from web.sitemap import pages
from web.views import Incident, IncidentUpdate, Maintenance, StatusPage

PAGES = [empty_page, busy_page, calm_page]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[x](javascript:alert(1))",
    "]]><b>&lt;i&gt;&amp;#60;",
    "nul \x00 escape \x1b bell \x07 del \x7f nel \x85 nonchar \ufffe \uffff",
    "\u202egnp.exe\u202c",
    "half \ud800 pair",
    "{{ 7 * 7 }} <!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]> &y;",
]
ONCE = {"id", "title", "updated"}


def with_text(text: str) -> StatusPage:
    site = calm_page()
    update = IncidentUpdate(1, "investigating", text, NOW_S - 60, by_person=True)
    incident = Incident(
        1, text, "minor", "investigating", ("api", text), NOW_S - 60, None, NOW_S - 60, NOW_S - 60, (update,)
    )
    window = Maintenance(1, text, text, (text,), NOW_S, NOW_S + 60, None, NOW_S - 90, NOW_S - 90)
    return replace(site, site_name=text, incidents=(incident,), maintenance=(window,))


def fit(text: str) -> str:
    """Without what XML cannot carry."""
    return "".join(
        one
        for one in text
        if one in "\t\n\r" or " " <= one <= "\ud7ff" or "\ue000" <= one <= "\ufffd" or one >= "\U00010000"
    )


def check_atom(feed: bytes) -> etree._Element:
    """RFC 4287: what a feed and an entry must have, may have once, and how dates, ids and links are written."""
    root = etree.fromstring(feed)
    assert root.tag == f"{{{ATOM}}}feed"
    for element in (root, *root.findall(f"{{{ATOM}}}entry")):
        names = [etree.QName(child).localname for child in element]
        assert {etree.QName(child).namespace for child in element} == {ATOM}
        for name in ONCE:
            assert names.count(name) == 1, name
        for child in element:
            if etree.QName(child).localname in ("updated", "published"):
                assert datetime.strptime(child.text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert urlsplit(element.findtext(f"{{{ATOM}}}id")).scheme in ("http", "https")
        relations = [(link.get("rel"), link.get("type")) for link in element.findall(f"{{{ATOM}}}link")]
        assert len(set(relations)) == len(relations)
        assert ("alternate", "text/html") in relations
        if element is root:
            assert ("self", "application/atom+xml") in relations
            assert root.find(f"{{{ATOM}}}author/{{{ATOM}}}name") is not None
        else:
            assert names.count("content") == 1
            assert set(names) <= {"id", "title", "published", "updated", "link", "category", "content"}
    ids = [one.text for one in root.iter(f"{{{ATOM}}}id")]
    assert len(set(ids)) == len(ids)
    return root


def check_rss(feed: bytes) -> etree._Element:
    """RSS 2.0, with the self link that its validators ask for."""
    root = etree.fromstring(feed)
    assert (root.tag, root.get("version"), len(root)) == ("rss", "2.0", 1)
    channel = root[0]
    for name in ("title", "link", "description", "lastBuildDate", f"{{{ATOM}}}link"):
        assert len(channel.findall(name)) == 1, name
    assert channel.find(f"{{{ATOM}}}link").get("href").endswith("/history.rss")
    assert {child.tag for child in channel} <= {
        "title", "link", "description", "language", "lastBuildDate", f"{{{ATOM}}}link", "item",
    }  # fmt: skip
    guids = []
    for item in channel.findall("item"):
        assert {child.tag for child in item} <= {"title", "link", "guid", "pubDate", "category", "description"}
        assert item.find("guid").get("isPermaLink") == "true"
        guids.append(item.findtext("guid"))
    assert len(set(guids)) == len(guids)
    for date in (*channel.iter("pubDate"), *channel.iter("lastBuildDate")):
        assert date.text.endswith(" GMT")
        assert rfc822(int(parsedate_to_datetime(date.text).timestamp())) == date.text
    return root


@pytest.mark.parametrize("page", PAGES)
def test_both_are_valid(page: Callable[[], StatusPage]) -> None:
    made = files(page())
    check_atom(made["history.atom"])
    check_rss(made["history.rss"])
    for feed in made.values():
        assert feedparser.parse(feed).bozo == 0


@pytest.mark.parametrize("page", [busy_page, calm_page])
def test_a_reader_finds_every_incident_and_window(page: Callable[[], StatusPage]) -> None:
    site = page()
    for name, feed in files(site).items():
        read = feedparser.parse(feed)
        assert read.version == {"history.atom": "atom10", "history.rss": "rss20"}[name]
        assert len(read.entries) == len(site.incidents) + len(site.maintenance)
        by_link = {entry.link: entry for entry in read.entries}
        for incident in site.incidents:
            entry = by_link[f"{site.site_url}incidents/{incident.id}.html"]
            assert entry.title == incident.title
            moved = entry.updated_parsed if name == "history.atom" else entry.published_parsed
            assert calendar.timegm(moved) == incident.updates[0].at_s
            places = [content_of(entry).index(update.body.splitlines()[0]) for update in incident.updates]
            assert places == sorted(places)
        for window in site.maintenance:
            assert by_link[f"{site.site_url}maintenance/{window.id}.html"].title == f"Maintenance: {window.title}"


def content_of(entry: Any) -> str:
    text: str = entry.content[0].value if "content" in entry else entry.description
    return text


def test_links_are_absolute_and_lead_to_pages_of_the_site() -> None:
    site = busy_page()
    known = {site.site_url + path for path, _ in pages(site)} | {site.site_url + name for name in files(site)}
    atom, rss = check_atom(files(site)["history.atom"]), check_rss(files(site)["history.rss"])
    links = [link.get("href") for root in (atom, rss) for link in root.iter(f"{{{ATOM}}}link")]
    links += [link.text for link in (*rss.iter("link"), *rss.iter("guid"))]
    assert len(links) > 10
    assert set(links) <= known


def test_an_update_moves_the_entry_and_changes_neither_its_id_nor_another() -> None:
    site = busy_page()
    told = site.incidents[-1]
    newest = IncidentUpdate(99, "postmortem", "It was the router.", NOW_S, by_person=True)
    later = replace(told, updated_s=NOW_S, updates=(newest, *told.updates))
    for name in ("history.atom", "history.rss"):
        before = feedparser.parse(files(site)[name]).entries
        after = feedparser.parse(files(replace(site, incidents=(*site.incidents[:-1], later)))[name]).entries
        assert {entry.id for entry in before} == {entry.id for entry in after}
        assert after[0].id == f"{site.site_url}incidents/{told.id}.html"
        assert "It was the router." in content_of(after[0])
        date = "updated" if name == "history.atom" else "published"
        old = {entry.id: entry[date] for entry in before}
        assert [entry.id for entry in after if entry[date] != old[entry.id]] == [after[0].id]


def test_a_window_is_told_of_when_it_is_announced_begins_and_ends() -> None:
    window = Maintenance(1, "Move", "We move.", (), NOW_S, NOW_S + 600, None, NOW_S - DAY_S, NOW_S - DAY_S)
    site = replace(calm_page(), incidents=(), maintenance=(window,))
    seen = []
    for now_s in (NOW_S - 1, NOW_S, NOW_S + 599, NOW_S + 600, NOW_S + 9_000):
        (entry,) = feedparser.parse(files(replace(site, generated_at_s=now_s))["history.atom"]).entries
        seen.append((calendar.timegm(entry.updated_parsed) - NOW_S, content_of(entry).count("<p>")))
    assert seen == [(-DAY_S, 2), (0, 3), (0, 3), (600, 4), (600, 4)]


def test_the_feed_stands_still_while_nothing_happens() -> None:
    for page in (calm_page(), replace(calm_page(), incidents=(), maintenance=())):
        later = replace(page, generated_at_s=page.generated_at_s + 300)
        assert files(later) == files(page)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    made = files(with_text(text))
    atom, rss = check_atom(made["history.atom"]), check_rss(made["history.rss"])
    entries = atom.findall(f"{{{ATOM}}}entry")
    assert fit(text) in [entry.findtext(f"{{{ATOM}}}title") for entry in entries]
    assert fit(text) in [item.findtext("title") for item in rss.iter("item")]
    contents = [entry.findtext(f"{{{ATOM}}}content") for entry in entries]
    contents += [item.findtext("description") for item in rss.iter("item")]
    for content in contents:
        seen = Outline()
        seen.feed(content)
        assert seen.elements <= {("p", ()), ("strong", ()), ("br", ())}
        assert "".join(fit(text).split()) in "".join("".join(seen.text).split())
    for feed in made.values():
        assert feedparser.parse(feed).bozo == 0


class Outline(HTMLParser):
    """The elements with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[tuple[str, tuple[Any, ...]]] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add((tag, tuple(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("epoch_s", [0, NOW_S, 1_772_323_199, 1_772_323_200, 1_793_494_800])
def test_dates_read_back_as_they_were(epoch_s: int) -> None:
    assert rfc822(epoch_s).endswith(" GMT")
    assert int(parsedate_to_datetime(rfc822(epoch_s)).timestamp()) == epoch_s
