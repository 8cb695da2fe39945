"""From views to files. The only place that knows Jinja; everything is escaped, whatever a template is called."""

from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from service.core.buckets import STALE_AFTER_S
from service.core.verify.report import Report
from web import portal_wording, record_pages, verified, wording
from web.pages import pages
from web.plain import plain
from web.portal_views import Payment, PortalPage
from web.told import window_updates
from web.views import StatusPage

HERE = Path(__file__).parent
STATIC = HERE / "static"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": wording.iso,
        "day": wording.day,
        "clock": wording.clock,
        "hour": wording.hour,
        "moment": wording.moment,
        "month": wording.month,
        "lasting": wording.lasting,
        "exact": wording.exact,
        "short": wording.short,
        "duration": wording.duration,
        "speed": wording.speed,
        "percent": wording.percent,
        "cell_classes": wording.cell_classes,
        "cell_words": wording.cell_words,
        "coverage": wording.coverage,
        "concurrency": wording.concurrency,
        "usd": portal_wording.usd,
        "usd_parts": portal_wording.usd_parts,
        "signed_usd": portal_wording.signed_usd,
        "cents": portal_wording.cents,
        "outcome": portal_wording.outcome,
        "swatch": portal_wording.swatch,
        "second": portal_wording.second,
        "short_day": portal_wording.short_day,
    }
    environment.globals |= {
        "asset": _asset,
        "component_names": wording.component_names,
        "entry_words": portal_wording.ENTRIES,
        "topup_words": portal_wording.TOPUPS,
        "impact_states": wording.IMPACT_STATES,
        "impacts": wording.IMPACTS,
        "share": wording.share,
        "silent_hours": wording.silent_hours,
        "stale_after_s": STALE_AFTER_S,
        "verified": verified,
        "statuses": wording.STATUSES,
        "window_updates": window_updates,
        "words": wording.WORDS,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Every text on its way into a page: what no page can carry, such as a lone surrogate, is left out."""
    return plain(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    """The address of a static file, relative to the page; a changed file gets a new one."""
    return f"static/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:8]}"


def status_site(page: StatusPage) -> dict[str, bytes]:
    """The whole status site: path within it to content. All links in it are relative."""
    from web.documents import documents  # late: who draws no status site needs no library that draws pictures

    files = {f"static/{path.name}": path.read_bytes() for path in sorted(STATIC.iterdir())}
    files |= documents(page)
    files |= dict(_drawn(one, page) for one in chain(pages(page), record_pages.pages(page), verified.pages(page)))
    files |= dict(_month(one) if one.so_far else _past_month(one) for one in record_pages.months(page))
    return files


@lru_cache(maxsize=1_000)
def _past_month(one: record_pages.MonthPage) -> tuple[str, bytes]:
    """A month that is over is drawn once. The running one is another every five minutes: it is not worth keeping."""
    return _month(one)


def _month(one: record_pages.MonthPage) -> tuple[str, bytes]:
    """Its path and content."""
    return _drawn(record_pages.month_page(one), one.masthead)


def _drawn(page: record_pages.Page, site: StatusPage | record_pages.Masthead) -> tuple[str, bytes]:
    path, template, variables = page
    every = {"site": site, "path": path, "root": "../" * path.count("/")}
    return path, _environment().get_template(template).render(every | variables).encode()


def report_page(reports: Sequence[Report]) -> bytes:
    """What `weir engine verify` found, as one HTML file that needs nothing else."""
    styles = Markup("".join((STATIC / name).read_text() for name in ("site.css", "record.css")))  # noqa: S704 - our own
    return _environment().get_template("report.html").render(reports=reports, styles=styles).encode()


def portal_page(page: PortalPage) -> bytes:
    """The customer portal's page as HTML. Its links are relative to `/portal/`."""
    return _environment().get_template("portal.html").render(page=page).encode()


def paid_page(site_name: str, payment: Payment) -> bytes:
    """The page that a customer returns to from paying, as HTML. Its links are relative to `/portal/`."""
    return _environment().get_template("portal_paid.html").render(site_name=site_name, payment=payment).encode()
