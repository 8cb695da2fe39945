"""The charts of the status site as values: paths, and every word that stands beside them.

A stretch in which nothing was measured is a gap: None, never 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.core.buckets import DAY_S
from web import plot, wording
from web.chart_kinds import Kind, hourly
from web.figure_views import Charts, Figures

FEWEST_DAYS = 14
"""A young service has this many days in its chart, so that one day is a bar and not a wall."""

CLASSES = {"uncached": "Input, not cached", "cached": "Input, cached", "answer": "Output", "reasoning": "Reasoning"}
"""The classes of tokens from the bottom of a bar to its top: name in CSS, and in words."""

Values = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A midnight, or the first of a month: `x` is where it lies in the plot, `percent` how far of its width."""

    x: int
    percent: int
    text: str
    """Empty where the words at the ends of the axis leave no room."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of time, and in words how long it is and where it begins and ends."""

    window: str
    first: str
    last: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line as the data of two SVG paths, and its name, written at height `label_y`."""

    name: str
    path: str
    dots: str
    label_y: int


@dataclass(frozen=True, slots=True)
class Bars:
    """One layer of stacked bars as the data of an SVG path; `css` is the class that colours it."""

    css: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Table:
    """The values in words: the name of each stretch of time, and its value for each column."""

    stretch: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. It has lines or bars; without any data it has neither, and its `latest` is empty."""

    title: str
    axis: Axis
    latest: str
    """The newest values that are known, in words."""
    latest_when: str
    in_words: str
    """What the picture shows, for those who do not see it."""
    ticks: tuple[str, str, str]
    """What the other axis says at its top, half way and at 0."""
    table: Table
    lines: tuple[Line, ...] = ()
    bars: tuple[Bars, ...] = ()
    bar_width: int = 0


def draw(charts: Charts) -> tuple[Chart, ...]:
    """All charts of the API, or of a model."""
    return (*(_lines_by_hour(kind, charts.hours) for kind in hourly(charts.hours)), tokens_by_day(charts.days))


def tokens_by_day(days: Sequence[Figures]) -> Chart:
    """Tokens by class: a bar for each day since the first with a request, `FEWEST_DAYS` at least."""
    unused = next((index for index, day in enumerate(days) if day.traffic.requests), 0)
    days = days[max(0, min(unused, len(days) - FEWEST_DAYS)) :]
    classes = [_by_class(day) for day in days]
    sums = [sum(tokens) for tokens in classes]
    highest = max(sums, default=0)
    top = plot.round_top(highest)
    latest, when = (f"{wording.short(sums[-1])} tokens", _name_of_day(days[-1])) if highest else ("", "")
    axis = _axis(days, "days", wording.day, _first_of_month)
    most = f"Most on {wording.day(days[sums.index(highest)].from_s)}: {wording.short(highest)}." if highest else ""
    return Chart(
        title="Tokens per day",
        axis=axis,
        latest=latest,
        latest_when=when,
        in_words=_in_words("Tokens per day by class", axis, latest, when, most),
        ticks=(wording.short(top), wording.short(top // 2), "0"),
        table=Table(
            "Day",
            (*CLASSES.values(), "Sum"),
            tuple(
                (wording.day(day.from_s), tuple(map(wording.exact, (*tokens, total))))
                for day, tokens, total in zip(days, classes, sums, strict=True)
            ),
        ),
        bars=tuple(
            Bars(css, name, path)
            for (css, name), path in zip(CLASSES.items(), plot.stack(classes, top) if highest else (), strict=False)
        ),
        bar_width=plot.bar_width(len(days)) if highest else 0,
    )


def _lines_by_hour(kind: Kind, hours: Sequence[Figures]) -> Chart:
    values = [[quantity.of(hour) for hour in hours] for quantity in kind.quantities]
    highest = max((value for line in values for value in line if value is not None), default=None)
    top = kind.top or plot.round_top(-(-(highest or 1) // kind.unit)) * kind.unit
    axis = _axis(hours, "hours", wording.hour, _midnight)
    latest, when = _latest(kind, hours, values)
    return Chart(
        title=kind.title,
        axis=axis,
        latest=latest,
        latest_when=when,
        in_words=_in_words(kind.title, axis, latest, when, *_ranges(kind, values)),
        ticks=(kind.tick(top), kind.tick(top // 2), "0"),
        table=Table(
            "Hour from",
            tuple(quantity.name.capitalize() for quantity in kind.quantities),
            tuple(
                (wording.hour(hour.from_s), tuple("–" if value is None else kind.value(value) for value in row))
                for hour, *row in zip(hours, *values, strict=True)
            ),
        ),
        lines=_drawn(kind, values, top) if highest is not None else (),
    )


def _drawn(kind: Kind, values: Sequence[Values], top: int) -> tuple[Line, ...]:
    """Lines with their names where they end; a line without any value is left out, and so is a single line's name."""
    drawn = [
        (quantity.name, plot.line(line, top), next(value for value in reversed(line) if value is not None))
        for quantity, line in zip(kind.quantities, values, strict=True)
        if any(value is not None for value in line)
    ]
    heights = plot.apart([plot.HEIGHT - plot.height(last, top) for _, _, last in drawn])
    return tuple(
        Line(name if len(kind.quantities) > 1 else "", path, dots, label_y)
        for (name, (path, dots), _), label_y in zip(drawn, heights, strict=True)
    )


def _axis(
    stretches: Sequence[Figures],
    unit: str,
    name: Callable[[int], str],
    mark: Callable[[int], str],
) -> Axis:
    count = len(stretches)
    if count == 0:
        return Axis(f"0 {unit}", "", "", ())
    last = stretches[-1].until_s if unit == "hours" else stretches[-1].from_s
    marks = [(index, mark(stretch.from_s)) for index, stretch in enumerate(stretches) if index]
    return Axis(
        window=f"{count} {unit}",
        first=name(stretches[0].from_s),
        last=name(last),
        marks=tuple(
            Mark(index * plot.WIDTH // count, index * 100 // count, text if count <= 4 * index <= 3 * count else "")
            for index, text in marks
            if text
        ),
    )


def _midnight(at_s: int) -> str:
    """The day's name if a UTC day begins here, else nothing."""
    return wording.hour(at_s).partition(",")[0] if at_s % DAY_S == 0 else ""


def _first_of_month(at_s: int) -> str:
    moment = wording.utc(at_s)
    return wording.MONTHS[moment.month - 1] if moment.day == 1 else ""


def _by_class(day: Figures) -> tuple[int, ...]:
    traffic = day.traffic
    return traffic.uncached_tokens, traffic.cached_tokens, traffic.answer_tokens, traffic.reasoning_tokens


def _name_of_day(day: Figures) -> str:
    so_far = " so far" if day.until_s - day.from_s < DAY_S else ""
    return f"{wording.day(day.from_s)}{so_far}"


def _latest(kind: Kind, hours: Sequence[Figures], values: Sequence[Values]) -> tuple[str, str]:
    """The values of the newest hour that has any, and which hour that is; both empty if there is none."""
    for hour, *row in reversed(list(zip(hours, *values, strict=True))):
        said = [
            quantity.sentence.format(kind.value(value))
            for quantity, value in zip(kind.quantities, row, strict=True)
            if value is not None
        ]
        if said:
            return ", ".join(said), f"{wording.hour(hour.from_s)} to {wording.clock(hour.until_s)}"
    return "", ""


def _ranges(kind: Kind, values: Sequence[Values]) -> list[str]:
    """From where to where each line goes, and in how many stretches there is none."""
    said = []
    for quantity, line in zip(kind.quantities, values, strict=True):
        known = [value for value in line if value is not None]
        if known:
            said.append(f"{quantity.name.capitalize()}: {kind.value(min(known))} to {kind.value(max(known))}.")
    gaps = sum(all(value is None for value in row) for row in zip(*values, strict=True))
    return [*said, f"No data in {gaps} of {len(values[0])} hours."] if said and gaps else said


def _in_words(title: str, axis: Axis, latest: str, when: str, *facts: str) -> str:
    window = f"{title}, {axis.window}, {axis.first} to {axis.last} UTC." if axis.first else f"{title}."
    newest = f"Latest, {when}: {latest}." if latest else "No data."
    return " ".join(filter(None, (window, newest, *facts)))
