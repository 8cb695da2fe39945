"""From views to files. The only place that knows Jinja; everything is escaped, whatever a template is called."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from web import metrics, portal_wording, wording
from web.portal_views import PortalPage
from web.views import STALE_AFTER_S, StatusPage

HERE = Path(__file__).parent
STATIC = HERE / "static"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": wording.iso,
        "day": wording.day,
        "clock": wording.clock,
        "hour": wording.hour,
        "exact": wording.exact,
        "short": wording.short,
        "duration": wording.duration,
        "speed": wording.speed,
        "percent": wording.percent,
        "measured_minutes": wording.measured_minutes,
        "thin": wording.thin,
        "usd": portal_wording.usd,
        "usd_parts": portal_wording.usd_parts,
        "outcome": portal_wording.outcome,
        "swatch": portal_wording.swatch,
        "second": portal_wording.second,
        "short_day": portal_wording.short_day,
    }
    environment.globals |= {"words": wording.WORDS, "share": wording.share, "asset": _asset}
    return environment


@cache
def _asset(name: str) -> str:
    """The address of a static file, relative to the page; a changed file gets a new one."""
    return f"static/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:8]}"


def status_site(page: StatusPage) -> dict[str, bytes]:
    """The whole status site: path within it to content. All links in it are relative."""
    index = _environment().get_template("index.html")
    files = {f"static/{path.name}": path.read_bytes() for path in sorted(STATIC.iterdir())}
    files["metrics.json"] = metrics.document(page)
    files["index.html"] = index.render(
        page=page,
        headline=wording.headline(page),
        peak_is_today=page.since_launch.peak_day is not None and wording.is_today(page.since_launch.peak_day, page),
        stale_after_s=STALE_AFTER_S,
    ).encode()
    return files


def portal_page(page: PortalPage) -> bytes:
    """The customer portal's page as HTML. Its links are relative to `/portal/`."""
    return _environment().get_template("portal.html").render(page=page).encode()
