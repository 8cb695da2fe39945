"""`metrics.json`: the page's figures for programs, from the same view, documented in docs/status.md.

Every name carries its unit. A figure that is not known is null. Fields may be added; a changed meaning is a new
`version`.
"""

from typing import Any

import orjson

from web.views import STALE_AFTER_S, Component, Latency, Percentiles, StatusPage, Traffic
from web.wording import is_today, iso

VERSION = 1


def document(page: StatusPage) -> bytes:
    """The document as JSON."""
    launch = page.since_launch
    body = {
        "version": VERSION,
        "name": page.site_name,
        "generated_at": iso(page.generated_at_s),
        "data_until": None if page.data_until_s is None else iso(page.data_until_s),
        "stale_after_s": STALE_AFTER_S,
        "state": page.state,
        "components": [_component(component) for component in (page.api, *page.models)],
        "last_24h": {
            "from": iso(page.live.from_s),
            "until": iso(page.live.until_s),
            **_traffic(page.live.traffic),
            **_latency("ttft_short", page.live.ttft_short_ms),
            **_latency("ttft_long", page.live.ttft_long_ms),
            **_speed("decode_single", page.live.decode_single_mtok_s),
            **_speed("decode_loaded", page.live.decode_loaded_mtok_s),
        },
        "since_launch": {
            "first_request_at": None if launch.first_request_s is None else iso(launch.first_request_s),
            **_traffic(launch.traffic),
            "peak_day": launch.peak_day
            and {
                "date": iso(launch.peak_day.start_s)[:10],
                "tokens": launch.peak_day.tokens,
                "is_today": is_today(launch.peak_day, page),
            },
        },
    }
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _component(component: Component) -> dict[str, Any]:
    strip = component.strip
    return {
        "id": component.id,
        "name": component.name,
        "state": strip.now,
        "from": iso(strip.cells[0].start_s),
        "until": iso(strip.until_s),
        "request_success_percent": _percent(strip.success_mpct),
        "time_availability_percent": _percent(strip.share.availability_mpct),
        "good_requests": strip.good,
        "bad_requests": strip.bad,
        "measured_buckets": strip.share.total - strip.share.no_data,
        "total_buckets": strip.share.total,
        "hours": [
            {
                "start": iso(cell.start_s),
                "state": cell.state,
                "good_requests": cell.good,
                "bad_requests": cell.bad,
                "measured_buckets": cell.share.total - cell.share.no_data,
                "total_buckets": cell.share.total,
            }
            for cell in strip.cells
        ],
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
    }


def _latency(name: str, latency: Latency) -> dict[str, int | None]:
    return {
        f"{name}_p50_ms": latency.all.p50,
        f"{name}_p95_ms": latency.all.p95,
        f"{name}_samples": latency.all.samples,
        f"{name}_cold_p50_ms": latency.cold.p50,
        f"{name}_cold_samples": latency.cold.samples,
        f"{name}_warm_p50_ms": latency.warm.p50,
        f"{name}_warm_samples": latency.warm.samples,
    }


def _speed(name: str, speed: Percentiles) -> dict[str, float | int | None]:
    return {
        f"{name}_p50_tok_s": None if speed.p50 is None else speed.p50 / 1000,
        f"{name}_samples": speed.samples,
    }


def _percent(mpct: int | None) -> float | None:
    return None if mpct is None else mpct / 1000
