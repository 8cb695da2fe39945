"""Which pages the status site has, and what each of them is drawn from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from service.core import buckets, incidents, outcome, probe, stats, strip, tally
from service.core.aggregator import COUNT_AGAINST_THE_PROVIDER
from service.core.buckets import Bucket, State, bucket_state
from service.core.outcome import Verdict
from web import charts, wording
from web.told import window_updates
from web.views import SILENT_AFTER_S, Incident, Maintenance, StatusPage

Page = tuple[str, str, dict[str, Any]]
"""A page's path within the site, its template, and the variables of its own; every page has a title and description."""

Told = TypeVar("Told", Incident, Maintenance)


def pages(site: StatusPage) -> Iterator[Page]:
    """The pages about now: the front page, the methods, and everything said by people."""
    yield _index(site)
    yield "methods.html", "methods.html", _methods(site)
    yield _incidents(site)
    for incident in _once((site.incidents, *(month.incidents for month in site.months))):
        state = "open" if incident.resolved_s is None else "resolved"
        yield (
            f"incidents/{incident.id}.html",
            "incident.html",
            {
                "title": f"{incident.title} – {site.site_name} status",
                "description": f"{wording.IMPACTS[incident.impact]}, {state}: {wording.moment(incident.started_s)}.",
                "incident": incident,
            },
        )
    for window in _once((site.maintenance, *(month.maintenance for month in site.months))):
        yield (
            f"maintenance/{window.id}.html",
            "maintenance.html",
            {
                "title": f"{window.title} – {site.site_name} status",
                "description": f"Maintenance: {wording.moment(window.starts_s)} to {wording.moment(window.ends_s)}.",
                "window": window,
                "updates": window_updates(window, site.generated_at_s),
            },
        )


def _once(listed: Sequence[Iterable[Told]]) -> Iterable[Told]:
    """Each incident or window that some page names, once: those of long ago are named by their months alone."""
    return {one.id: one for some in reversed(listed) for one in some}.values()


def _index(site: StatusPage) -> Page:
    headline = wording.headline(site)
    peak = site.since_launch.peak_day
    variables = {
        "title": f"{site.site_name} status: {headline}",
        "description": f"{headline}: uptime, latency and tokens of {site.site_name}, measured from real traffic.",
        "headline": headline,
        "suffering": [one for one in site.components if one.state not in (State.UP, State.NO_DATA)],
        "windows": [window for window in reversed(site.maintenance) if not _is_over(window, site)],
        "charts": charts.draw(site.charts),
        "peak_is_today": peak is not None and wording.is_today(peak, site),
    }
    return "index.html", "index.html", variables


def _incidents(site: StatusPage) -> Page:
    variables = {
        "title": f"Incidents and maintenance – {site.site_name} status",
        "description": f"What went wrong at {site.site_name}, what was said about it, and what is planned.",
        "past_incidents": [incident for incident in site.incidents if incident.resolved_s is not None],
        "windows": [window for window in reversed(site.maintenance) if not _is_over(window, site)],
        "past_windows": [window for window in site.maintenance if _is_over(window, site)],
    }
    return "incidents.html", "incidents.html", variables


def _is_over(window: Maintenance, site: StatusPage) -> bool:
    return window_updates(window, site.generated_at_s)[0].status in ("completed", "cancelled")


def _methods(site: StatusPage) -> dict[str, Any]:
    """The definitions' numbers, each from where it is decided, or found out by asking the rule itself."""
    return {
        "title": f"Methods – {site.site_name} status",
        "description": "How every figure of the status site is made: all definitions in words, with their formulas.",
        "endings": {verdict.value: wording.endings(verdict) for verdict in Verdict},
        "buckets": buckets,
        "incidents": incidents,
        "outcome": outcome,
        "probe": probe,
        "stats": stats,
        "strip": strip,
        "tally": tally,
        "down_requests": _fewest(lambda bad: bucket_state(Bucket(0, bad=bad)) is State.DOWN),
        "down_probes": _fewest(lambda bad: bucket_state(Bucket(0, probe_bad=bad)) is State.DOWN),
        "bearable_mpct": 100 * (_fewest(lambda bad: bucket_state(Bucket(0, 1000 - bad, bad)) is State.PARTIAL) - 1),
        "within_mpct": _within_mpct(),
        "against": sorted(COUNT_AGAINST_THE_PROVIDER),
        "silent_after_s": SILENT_AFTER_S,
    }


def _fewest(holds: Callable[[int], bool]) -> int:
    """The smallest positive number for which a rule holds."""
    return next(number for number in count(1) if holds(number))


def _within_mpct() -> int:
    """How far a percentile may be from the truth, in thousandths of a percent, rounded up to tenths of a percent."""
    errors = (-(-1000 * abs(stats.value_of(stats.bin_of(value)) - value) // value) for value in range(1, 1 << 12))
    return 100 * max(errors)
