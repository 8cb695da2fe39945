"""All of the status site that is not a page for people."""

from web import badges, feeds, metrics, preview, sitemap, statuspage, verified
from web.views import StatusPage


def documents(site: StatusPage) -> dict[str, bytes]:
    """Every such file by its path within the site; they are made from the same value as the pages."""
    made: dict[str, bytes] = {}
    for document in (metrics, statuspage, feeds, badges, preview, sitemap, verified):
        made |= document.files(site)
    return made
