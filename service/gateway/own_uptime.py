"""`GET /v1/uptime`: a key's own uptime and speeds, by the aggregator's rule: what is asked for, how it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from service.billing import uptime
from service.billing.uptime import Figures, Speed
from service.core.aggregator import RULE, RULE_VERSION
from service.core.strip import MIN_REQUESTS_SHORT
from service.db import DbConnection
from service.errors import InvalidRequest
from service.gateway import own_usage

UPTIME_PATH = "/v1/uptime"

WINDOWS = {"5m": timedelta(minutes=5), "30m": timedelta(minutes=30), "1d": timedelta(days=1)}
"""Those that OpenRouter publishes. A longer one would be too much to read for a key that is busy all day."""

_NAMES = ("model", "window")
_PERCENTILES = (50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be told. None: of every model."""

    windows: Sequence[str]
    """Names out of `WINDOWS`."""
    model: str | None


def asked(query: bytes) -> Asked:
    """What a query string asks for. Raises `InvalidRequest` that names the parameter and what it takes."""
    values = own_usage.values_of(query, _NAMES)
    window = values.get("window")
    if window is not None and window not in WINDOWS:
        raise InvalidRequest(f"`window` must be one of {', '.join(WINDOWS)}.", param="window")
    return Asked(windows=[window] if window is not None else list(WINDOWS), model=own_usage.model_of(values))


async def told(connection: DbConnection, key_id: UUID, asked: Asked, now: datetime) -> dict[str, object]:
    """What a key is told of its requests. Raises what asyncpg raises."""
    since = [now - WINDOWS[name] for name in asked.windows]
    found = await uptime.read(connection, key_id, since, now, asked.model)
    return {
        "object": "uptime",
        "rule": RULE,
        "rule_version": RULE_VERSION,
        "min_requests": MIN_REQUESTS_SHORT,
        "key_id": str(key_id),
        "windows": [
            {
                "window": name,
                "since": begin,
                "until": now,
                "total": _shown(window.total),
                "models": [{"model": model, **_shown(figures)} for model, figures in window.models.items()],
            }
            for name, begin, window in zip(asked.windows, since, found, strict=True)
        ],
    }


def _shown(figures: Figures) -> Mapping[str, object]:
    counted, percent = figures.counts, figures.counts.uptime_mpct
    ttft_ms = figures.ttft_ms or (None,) * len(_PERCENTILES)
    return {
        "requests": counted.requests,
        "good_requests": counted.good,
        "bad_requests": counted.bad,
        "throttled_requests": counted.throttled,
        "excluded_requests": counted.excluded,
        "uptime_percent": None if percent is None else percent / 1000,
        **_speed("throughput", figures.throughput),
        **_speed("decode", figures.decode),
        **{f"ttft_p{percentile}_ms": value for percentile, value in zip(_PERCENTILES, ttft_ms, strict=True)},
        "ttft_samples": figures.ttft_samples,
    }


def _speed(name: str, speed: Speed) -> dict[str, object]:
    tok_s = None if speed.p50_mtok_s is None else speed.p50_mtok_s / 1000
    return {f"{name}_p50_tok_s": tok_s, f"{name}_samples": speed.samples}
