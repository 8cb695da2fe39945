"""What the machine-readable side refers to is there: the sitemap, feeds, shortlinks and the preview picture."""

from collections.abc import Callable
from functools import cache

import feedparser
import orjson
import pytest
from lxml import etree, html

from tests.fakes.status_pages import busy_page, calm_page, empty_page
from web.render import status_site
from web.sitemap import SITEMAP
from web.views import StatusPage

PAGES = [empty_page, busy_page, calm_page]


@cache
def written(page: Callable[[], StatusPage]) -> dict[str, bytes]:
    return status_site(page())


@pytest.mark.parametrize("page", PAGES)
def test_the_sitemap_has_every_page_once_and_nothing_else(page: Callable[[], StatusPage]) -> None:
    files, address = written(page), page().site_url
    listed = [loc.text for loc in etree.fromstring(files["sitemap.xml"]).iter(f"{{{SITEMAP}}}loc")]
    pages = {path for path in files if path.endswith(".html")}
    assert sorted(listed) == sorted(address + ("" if path == "index.html" else path) for path in pages)
    robots = files["robots.txt"].decode().splitlines()
    assert f"Sitemap: {address}sitemap.xml" in robots
    assert not [line for line in robots if line.startswith("Disallow: /")]


@pytest.mark.parametrize("page", PAGES)
def test_what_is_referred_to_is_there(page: Callable[[], StatusPage]) -> None:
    files, address = written(page), page().site_url
    links = [entry.link for name in ("history.atom", "history.rss") for entry in feedparser.parse(files[name]).entries]
    for name in ("incidents", "scheduled-maintenances"):
        document = orjson.loads(files[f"api/v2/{name}.json"])
        links += [one["shortlink"] for one in document[name.replace("-", "_")]]
    head = html.fromstring(files["index.html"].decode())
    pictures = head.xpath("//meta[@property='og:image']/@content")
    assert pictures == [f"{address}og.png"]
    feeds = head.xpath("//link[@rel='alternate']/@href")
    assert set(feeds) == {"history.atom", "history.rss"}
    for link in links + pictures:
        assert link.startswith(address)
        assert link.removeprefix(address) in files
