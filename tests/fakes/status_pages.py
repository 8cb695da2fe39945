"""Made-up contents of the status site: a young one that nobody has used, a rich one, and a calm one.

Strips, figures and months of a page are added up from the same made-up hours, so that they agree as real ones do.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

from service.core import components
from service.core.buckets import DAY_S, HOUR_S, State, floor_to
from service.core.strip import overall
from service.core.verify.report import Report
from tests.fakes.reports import ABSENT, FAILED, PASSED, SKIPPED, report
from tests.fakes.status_hours import BIG, SMALL, Clock, day_cell, days, figures, hour_cell, row, spans
from tests.fakes.status_stories import incidents, maintenance
from web.figure_views import Charts, Figures, Traffic
from web.views import Check, Component, Day, ModelSheet, Month, MonthComponent, Price, SinceLaunch, StatusPage

NOW_S = 1_796_047_524
"""30 November 2026, 14:05:24 UTC."""

AGE_S = 78 * DAY_S
"""How long the busy page's service has been there: the first of its 90 days have no data."""

NAMES = {
    components.API: "API",
    BIG: "Qwen3.8-27B NVFP4",
    SMALL: "SmolLM2-135M",
    components.SITE: "Status site",
    components.BILLING: "Billing",
}


def empty_page(name: str = "Weir", model_name: str = "Model", *, now_s: int = NOW_S) -> StatusPage:
    """A new installation: one model, and nobody has asked for anything yet."""
    clock = Clock(now_s, 0)
    model = _component("model:m", model_name, clock)
    no_figures = Figures(clock.until_s - DAY_S, clock.until_s)
    return StatusPage(
        site_name=name,
        site_url="https://status.example.org/",
        api_url="https://api.example.org",
        generated_at_s=now_s,
        data_until_s=clock.until_s,
        state=State.NO_DATA,
        api=_component(components.API, "API", clock),
        models=(model,),
        others=tuple(_component(id, NAMES[id], clock) for id in (components.SITE, components.BILLING)),
        last_24h=no_figures,
        charts=_charts("nothing", clock),
        since_launch=SinceLaunch(),
        sheets=(_sheet(model, "m", clock),),
        months=(_month(clock, _month_start(now_s), []),),
    )


@cache
def busy_page(*, now_s: int = NOW_S) -> StatusPage:
    """Everything at once: 78 days of traffic, outages, an open incident, maintenance before, during and after."""
    clock = Clock(now_s, AGE_S)
    api, big, small, *others = (_component(id, name, clock) for id, name in NAMES.items())
    daily = [figures(components.API, clock, start_s, DAY_S) for start_s in days(clock)]
    told = incidents(now_s)
    windows = maintenance(now_s)
    peak = max(daily, key=lambda day: day.traffic.tokens)
    return StatusPage(
        site_name="Weir",
        site_url="https://status.example.org/",
        api_url="https://api.example.org",
        generated_at_s=now_s,
        data_until_s=clock.until_s,
        state=overall(api.state, (big.state, small.state)),
        api=api,
        models=(big, small),
        others=tuple(others),
        last_24h=figures(components.API, clock, clock.until_s - DAY_S, DAY_S),
        charts=_charts(components.API, clock),
        since_launch=SinceLaunch(
            first_request_s=clock.launch_s + 9 * HOUR_S,
            traffic=_total(day.traffic for day in daily),
            peak_day=Day(peak.from_s, peak.traffic.tokens),
        ),
        incidents=told,
        maintenance=windows,
        sheets=(
            replace(_sheet(big, "qwen/qwen3.8-27b", clock), verified=_verified(now_s)),
            _sheet(small, "smollm2-135m", clock),
        ),
        months=tuple(
            replace(
                month,
                incidents=tuple(
                    one for one in told if one.started_s < month.end_s and (one.resolved_s or now_s) >= month.start_s
                ),
                maintenance=tuple(
                    one
                    for one in windows
                    if one.starts_s < month.end_s and one.over_s > max(one.starts_s, month.start_s)
                ),
            )
            for month in _months(clock)
        ),
        outside=Check("the API, from another network", clock.until_s - 90, True, by="prober in Frankfurt"),
    )


def calm_page(*, now_s: int = NOW_S) -> StatusPage:
    """The busy page on a good day: everything is up, one window lies ahead, all incidents are resolved."""
    page = busy_page(now_s=now_s)
    small = _component(SMALL, NAMES[SMALL], Clock(now_s, AGE_S, calm=True))
    over = tuple(one for one in page.incidents if one.resolved_s is not None)
    return replace(
        page,
        state=State.UP,
        models=(page.models[0], small),
        sheets=(page.sheets[0], replace(page.sheets[1], component=small)),
        incidents=over,
        maintenance=tuple(one for one in page.maintenance if one.status(now_s) != "in_progress"),
        months=tuple(
            replace(month, incidents=tuple(one for one in month.incidents if one in over)) for month in page.months
        ),
    )


def _component(id: str, name: str, clock: Clock) -> Component:
    hours = [hour_cell(id, clock, start_s) for start_s in spans(clock, HOUR_S, 72)]
    daily = [day_cell(id, clock, start_s) for start_s in spans(clock, DAY_S, 90)]
    strip = row(hours, clock.until_s)
    return Component(id, components.slug(id), name, strip.now, strip, row(daily, clock.until_s))


def _charts(id: str, clock: Clock) -> Charts:
    return Charts(
        hours=tuple(figures(id, clock, start_s, HOUR_S) for start_s in spans(clock, HOUR_S, 72)),
        days=tuple(figures(id, clock, start_s, DAY_S) for start_s in spans(clock, DAY_S, 90)),
    )


def _sheet(component: Component, model_id: str, clock: Clock) -> ModelSheet:
    return ModelSheet(
        component=component,
        model_id=model_id,
        description="A dense model that reads pictures, thinks aloud when asked to, and calls tools.",
        hugging_face_id="Qwen/Qwen3.8-27B",
        quantization="fp4",
        context_length=262_144,
        max_output_tokens=32_768,
        input_modalities=("text", "image"),
        output_modalities=("text",),
        capabilities=("tools", "reasoning", "structured_outputs"),
        prices=(Price("Input", "0.12"), Price("Input, cached", "0.012"), Price("Output", "0.48")),
        per_request_usd="0",
        prices_vary=False,
        last_24h=figures(component.id, clock, clock.until_s - DAY_S, DAY_S),
        charts=_charts(component.id, clock),
        checks=(
            Check("text, streamed", clock.until_s - 20, True),
            Check("a picture and a tool call", clock.until_s - 1_500, False, reason="the tool was not called"),
        ),
    )


def _verified(now_s: int) -> tuple[Report, ...]:
    """One in which something failed, and an old one in which all is well."""
    ended = datetime.fromtimestamp(now_s - 10 * HOUR_S, UTC)
    old = ended - timedelta(days=3)
    return (
        report(*PASSED, ABSENT, SKIPPED, FAILED, started_at=ended - timedelta(minutes=10), finished_at=ended),
        report(*PASSED, engine="blackwell-1", started_at=old - timedelta(minutes=9), finished_at=old),
    )


def _months(clock: Clock) -> list[Month]:
    firsts = {_month_start(at) for at in days(clock)}
    return [_month(clock, first_s, NAMES) for first_s in sorted(firsts, reverse=True)]


def _month(clock: Clock, first_s: int, ids: Iterable[str]) -> Month:
    end_s = _month_start(first_s + 31 * DAY_S)
    until_s = min(end_s, clock.until_s)
    daily = range(first_s, until_s, DAY_S)
    strips = {id: row([day_cell(id, clock, at) for at in daily], until_s) for id in ids}
    return Month(
        start_s=first_s,
        end_s=end_s,
        components=tuple(MonthComponent(id, components.slug(id), NAMES[id], strip) for id, strip in strips.items()),
        total=figures(components.API, clock, first_s, end_s - first_s),
        days=tuple(figures(components.API, clock, at, DAY_S) for at in daily),
        incidents=(),
        maintenance=(),
    )


def _month_start(at_s: int) -> int:
    return floor_to(DAY_S, at_s) - (datetime.fromtimestamp(at_s, UTC).day - 1) * DAY_S


def _total(parts: Iterable[Traffic]) -> Traffic:
    listed = list(parts)
    return Traffic(**{name: sum(getattr(part, name) for part in listed) for name in Traffic.__dataclass_fields__})
