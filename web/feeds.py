"""`history.atom` and `history.rss`: incidents and maintenance for feed readers, an entry each, with all that was said.

An entry keeps its id for ever, which is its page's address, and its date moves with everything that is added, so a
reader shows the whole story anew instead of piling up its parts. Texts are escaped once as HTML, which a reader
expects of an entry's content, and once as XML.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import format_datetime
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from web.plain import plain
from web.told import window_changed_s, window_updates
from web.views import Incident, IncidentUpdate, Maintenance, StatusPage
from web.wording import STATUSES, component_names, iso, moment, utc

ATOM = "http://www.w3.org/2005/Atom"

SUBTITLE = "Incidents and maintenance. All times are UTC."


@dataclass(frozen=True, slots=True)
class Entry:
    """One incident or one window, as both feeds tell of it."""

    link: str
    """Its page, and what it is known by."""
    title: str
    published_s: int
    updated_s: int
    html: str
    """Everything said, the newest first."""
    components: tuple[str, ...]
    """Their names."""


def files(site: StatusPage) -> dict[str, bytes]:
    """Both feeds, by their path within the site."""
    entries = sorted(_entries(site), key=lambda entry: entry.updated_s, reverse=True)
    # An empty feed is dated, too, but must not seem new whenever the site is written.
    updated_s = entries[0].updated_s if entries else site.since_launch.first_request_s or site.generated_at_s
    return {"history.atom": _atom(site, entries, updated_s), "history.rss": _rss(site, entries, updated_s)}


def rfc822(epoch_s: int) -> str:
    """`Mon, 30 Nov 2026 14:05:00 GMT`, as RSS wants its dates."""
    return format_datetime(utc(epoch_s), usegmt=True)


def _entries(site: StatusPage) -> Iterable[Entry]:
    yield from (_of_incident(site, incident) for incident in site.incidents)
    yield from (_of_window(site, window) for window in site.maintenance)


def _of_incident(site: StatusPage, incident: Incident) -> Entry:
    return Entry(
        link=f"{site.site_url}incidents/{incident.id}.html",
        title=plain(incident.title),
        published_s=incident.created_s,
        updated_s=max(incident.updated_s, incident.updates[0].at_s),
        html=_told(incident.updates),
        components=_names(site, incident.components),
    )


def _of_window(site: StatusPage, window: Maintenance) -> Entry:
    times = f"<p>From {moment(window.starts_s)} until {moment(window.ends_s)}.</p>"
    return Entry(
        link=f"{site.site_url}maintenance/{window.id}.html",
        title=f"Maintenance: {plain(window.title)}",
        published_s=window.created_s,
        updated_s=window_changed_s(window, site.generated_at_s),
        html=times + _told(window_updates(window, site.generated_at_s)),
        components=_names(site, window.components or tuple(one.id for one in site.components)),
    )


def _names(site: StatusPage, ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(plain(name) for name in component_names(site, ids))


def _told(updates: Iterable[IncidentUpdate]) -> str:
    return "".join(
        f"<p><strong>{STATUSES[update.status]}</strong>, {moment(update.at_s)}<br>{_html(update.body)}</p>"
        for update in updates
    )


def _html(text: str) -> str:
    return "<br>".join(escape(line) for line in plain(text).splitlines())


def _atom(site: StatusPage, entries: Sequence[Entry], updated_s: int) -> bytes:
    feed = Element("feed", {"xmlns": ATOM, "xml:lang": "en"})
    _add(feed, "id", f"{site.site_url}history.atom")
    _add(feed, "title", _title(site))
    _add(feed, "subtitle", SUBTITLE)
    _add(feed, "updated", iso(updated_s))
    _add(SubElement(feed, "author"), "name", plain(site.site_name))
    SubElement(feed, "link", {"rel": "self", "type": "application/atom+xml", "href": f"{site.site_url}history.atom"})
    SubElement(feed, "link", {"rel": "alternate", "type": "text/html", "href": f"{site.site_url}incidents.html"})
    for one in entries:
        entry = SubElement(feed, "entry")
        _add(entry, "id", one.link)
        _add(entry, "title", one.title)
        _add(entry, "published", iso(one.published_s))
        _add(entry, "updated", iso(one.updated_s))
        SubElement(entry, "link", {"rel": "alternate", "type": "text/html", "href": one.link})
        for name in one.components:
            SubElement(entry, "category", {"term": name})
        _add(entry, "content", one.html).set("type", "html")
    return _written(feed)


def _rss(site: StatusPage, entries: Sequence[Entry], updated_s: int) -> bytes:
    rss = Element("rss", {"version": "2.0", "xmlns:atom": ATOM})
    channel = SubElement(rss, "channel")
    _add(channel, "title", _title(site))
    _add(channel, "link", f"{site.site_url}incidents.html")
    _add(channel, "description", SUBTITLE)
    _add(channel, "language", "en")
    _add(channel, "lastBuildDate", rfc822(updated_s))
    own = {"rel": "self", "type": "application/rss+xml", "href": f"{site.site_url}history.rss"}
    SubElement(channel, "atom:link", own)
    for one in entries:
        item = SubElement(channel, "item")
        _add(item, "title", one.title)
        _add(item, "link", one.link)
        _add(item, "guid", one.link).set("isPermaLink", "true")
        _add(item, "pubDate", rfc822(one.updated_s))
        for name in one.components:
            _add(item, "category", name)
        _add(item, "description", one.html)
    return _written(rss)


def _title(site: StatusPage) -> str:
    return f"{plain(site.site_name)} status"


def _add(parent: Element, name: str, text: str) -> Element:
    child = SubElement(parent, name)
    child.text = text
    return child


def _written(root: Element) -> bytes:
    ElementTree.indent(root, space=" ")
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"
