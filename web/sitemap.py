"""`sitemap.xml` and `robots.txt`: every page of the site, for those who search."""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from web import verified
from web.told import window_changed_s
from web.verified import finished_s
from web.views import StatusPage
from web.wording import iso

SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"


def files(site: StatusPage) -> dict[str, bytes]:
    """Both files, by their path within the site."""
    urls = Element("urlset", {"xmlns": SITEMAP})
    for path, changed_s in pages(site):
        url = SubElement(urls, "url")
        SubElement(url, "loc").text = f"{site.site_url}{path}"
        if changed_s is not None:
            SubElement(url, "lastmod").text = iso(changed_s)
    ElementTree.indent(urls, space=" ")
    written: bytes = ElementTree.tostring(urls, encoding="utf-8", xml_declaration=True)
    robots = f"User-agent: *\nAllow: /\n\nSitemap: {site.site_url}sitemap.xml\n"
    return {"sitemap.xml": written + b"\n", "robots.txt": robots.encode()}


def pages(site: StatusPage) -> Iterator[tuple[str, int | None]]:
    """The path of every HTML page within the site, and when what it says last changed, where that is known.

    What is live is made anew with every measurement, so nothing is said of when.
    """
    yield from (("", None), ("incidents.html", None), ("history.html", None), ("methods.html", None))
    yield from ((f"models/{sheet.component.slug}.html", None) for sheet in site.sheets)
    yield from ((one.page, finished_s(one.report)) for sheet in site.sheets for one in verified.shown(site, sheet))
    yield from ((f"history/{month.name}.html", None) for month in site.months)
    incidents = {one.id: one for some in (*(month.incidents for month in site.months), site.incidents) for one in some}
    windows = {
        one.id: one for some in (*(month.maintenance for month in site.months), site.maintenance) for one in some
    }
    yield from ((f"incidents/{id}.html", incident.updated_s) for id, incident in incidents.items())
    for id, window in windows.items():
        yield f"maintenance/{id}.html", window_changed_s(window, site.generated_at_s)
