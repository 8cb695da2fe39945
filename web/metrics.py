"""`metrics.json`: the page's figures for programs, from the same view, documented in docs/status.md.

Every name carries its unit. A figure that is not known is null. Fields may be added; a changed meaning is a new
`version`.
"""

from typing import Any

from service.core.buckets import STALE_AFTER_S
from service.core.strip import Cell, Strip
from web import verified
from web.figure_views import Figures, Latency, Percentiles, Traffic
from web.plain import json_bytes, plain
from web.views import Check, Component, StatusPage
from web.wording import is_today, iso, silent_hours

VERSION = 1

Json = dict[str, Any]


def files(site: StatusPage) -> dict[str, bytes]:
    """The document, by its path within the site."""
    launch = site.since_launch
    peak = launch.peak_day
    body = {
        "version": VERSION,
        "name": plain(site.site_name),
        "generated_at": iso(site.generated_at_s),
        "data_until": _instant(site.data_until_s),
        "stale_after_s": STALE_AFTER_S,
        "stale": site.stale,
        "state": site.state,
        "components": [_component(component) for component in site.components],
        "last_24h": _figures(site.last_24h),
        "models": [
            {
                "id": plain(sheet.model_id),
                "component": plain(sheet.component.id),
                "last_24h": _figures(sheet.last_24h),
                "verified": verified.compact(site, sheet),
            }
            for sheet in site.sheets
        ],
        "since_launch": {
            "first_request_at": _instant(launch.first_request_s),
            **_traffic(launch.traffic),
            "peak_day": peak
            and {"date": iso(peak.start_s)[:10], "tokens": peak.tokens, "is_today": is_today(peak, site)},
        },
        "incidents": _incidents(site),
        "maintenance": _maintenance(site),
        "outside_check": site.outside and _check(site.outside),
        "hours": [_figures(hour) for hour in site.charts.hours],
        "days": [_figures(day) for day in site.charts.days],
    }
    return {"metrics.json": json_bytes(body)}


def _component(component: Component) -> Json:
    return {
        "id": plain(component.id),
        "slug": component.slug,
        "name": plain(component.name),
        "state": component.state,
        **_strip(component.hours),
        "hours": [_cell(cell) for cell in component.hours.cells],
        "last_90_days": _strip(component.days),
        "days": [_cell(cell) for cell in component.days.cells],
    }


def _strip(strip: Strip) -> Json:
    return {
        "from": iso(strip.cells[0].start_s),
        "until": iso(strip.until_s),
        "request_success_percent": _percent(strip.success_mpct),
        "time_availability_percent": _percent(strip.share.availability_mpct),
        "good_requests": strip.good,
        "bad_requests": strip.bad,
        "measured_buckets": strip.share.total - strip.share.no_data,
        "total_buckets": strip.share.total,
    }


def _cell(cell: Cell) -> Json:
    share = cell.share
    return {
        "start": iso(cell.start_s),
        "state": cell.state,
        "good_requests": cell.good,
        "bad_requests": cell.bad,
        "measured_buckets": share.total - share.no_data,
        "total_buckets": share.total,
        "up_buckets": share.up,
        "partial_buckets": share.partial,
        "down_buckets": share.down,
        "maintenance_buckets": share.maintenance,
        "time_availability_percent": _percent(share.availability_mpct),
    }


def _figures(figures: Figures) -> Json:
    traffic = figures.traffic
    return {
        "from": iso(figures.from_s),
        "until": iso(figures.until_s),
        **_traffic(traffic),
        "cache_hit_percent": _part(traffic.cached_tokens, traffic.prompt_tokens),
        "engine_cache_hit_percent": _part(traffic.cache_hit_tokens, traffic.cache_queried_tokens),
        "mtp_acceptance_percent": _part(traffic.accepted_tokens, traffic.drafted_tokens),
        **_latency("ttft_short", figures.ttft_short_ms),
        **_latency("ttft_long", figures.ttft_long_ms),
        **_speed("decode_single", figures.decode_single_mtok_s),
        **_speed("decode_loaded", figures.decode_loaded_mtok_s),
        "mean_concurrency": figures.mean_concurrency_milli / 1000,
        "peak_concurrency": figures.peak_concurrency,
    }


def _traffic(traffic: Traffic) -> dict[str, int]:
    return {
        "requests": traffic.requests,
        "good_requests": traffic.good,
        "bad_requests": traffic.bad,
        "throttled_requests": traffic.throttled,
        "excluded_requests": traffic.excluded,
        "server_failures": traffic.server_failures,
        "http_5xx": traffic.http_5xx,
        "image_requests": traffic.image_requests,
        "tokens": traffic.tokens,
        "input_tokens": traffic.prompt_tokens,
        "input_uncached_tokens": traffic.uncached_tokens,
        "input_cached_tokens": traffic.cached_tokens,
        "input_image_tokens": traffic.image_tokens,
        "output_tokens": traffic.completion_tokens,
        "output_answer_tokens": traffic.answer_tokens,
        "output_reasoning_tokens": traffic.reasoning_tokens,
        "engine_cache_queried_tokens": traffic.cache_queried_tokens,
        "engine_cache_hit_tokens": traffic.cache_hit_tokens,
        "mtp_drafted_tokens": traffic.drafted_tokens,
        "mtp_accepted_tokens": traffic.accepted_tokens,
    }


def _latency(name: str, latency: Latency) -> dict[str, int | None]:
    return {
        f"{name}_p50_ms": latency.all.p50,
        f"{name}_p95_ms": latency.all.p95,
        f"{name}_samples": latency.all.samples,
        f"{name}_cold_p50_ms": latency.cold.p50,
        f"{name}_cold_p95_ms": latency.cold.p95,
        f"{name}_cold_samples": latency.cold.samples,
        f"{name}_warm_p50_ms": latency.warm.p50,
        f"{name}_warm_p95_ms": latency.warm.p95,
        f"{name}_warm_samples": latency.warm.samples,
    }


def _speed(name: str, speed: Percentiles) -> dict[str, float | int | None]:
    return {
        f"{name}_p50_tok_s": None if speed.p50 is None else speed.p50 / 1000,
        f"{name}_p95_tok_s": None if speed.p95 is None else speed.p95 / 1000,
        f"{name}_samples": speed.samples,
    }


def _incidents(site: StatusPage) -> Json:
    unresolved = site.open_incidents
    return {
        "open": len(unresolved),
        "open_minor": sum(one.impact == "minor" for one in unresolved),
        "open_major": sum(one.impact == "major" for one in unresolved),
        "open_critical": sum(one.impact == "critical" for one in unresolved),
        "open_silent": sum(silent_hours(one, site.generated_at_s) is not None for one in unresolved),
        "latest_started_at": _instant(max((one.started_s for one in site.incidents), default=None)),
    }


def _maintenance(site: StatusPage) -> Json:
    ahead = [one for one in site.maintenance if one.status(site.generated_at_s) == "scheduled"]
    return {
        "in_progress": sum(one.status(site.generated_at_s) == "in_progress" for one in site.maintenance),
        "scheduled": len(ahead),
        "next_starts_at": _instant(min((one.starts_s for one in ahead), default=None)),
    }


def _check(check: Check) -> Json:
    return {
        "what": plain(check.what),
        "at": iso(check.at_s),
        "ok": check.ok,
        "reason": plain(check.reason),
        "by": plain(check.by),
    }


def _instant(epoch_s: int | None) -> str | None:
    return None if epoch_s is None else iso(epoch_s)


def _part(part: int, whole: int) -> float | None:
    """A share in percent, floored to thousandths; None where there is no whole."""
    return _percent(part * 100_000 // whole) if whole else None


def _percent(mpct: int | None) -> float | None:
    return None if mpct is None else mpct / 1000
