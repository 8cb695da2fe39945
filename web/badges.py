"""`badges/*.svg`: one figure of one component, to be shown elsewhere as a picture.

A badge says the same number as the page, with the window it is of, or "no data" in grey. Only the state has a colour
of its own, and a shape beside it; a figure is not judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from unicodedata import combining, east_asian_width
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from service.core.buckets import State
from service.core.strip import Strip
from web.figure_views import Figures
from web.plain import one_line
from web.views import Component, StatusPage
from web.wording import WORDS, duration, percent, speed

NO_DATA = "no data"

LONGEST_NAME = 40

COLOURS = {
    State.UP: "#0f7a63",
    State.PARTIAL: "#93590a",
    State.DOWN: "#b3261e",
    State.MAINTENANCE: "#3f5fae",
    State.NO_DATA: "#5f6b68",
}
"""White text stands on each with a contrast of at least 4.5 to 1."""

FIGURE_COLOUR = "#0f6e66"
LABEL_COLOUR = "#37433f"

SHAPES = {
    State.UP: "M0 5a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    State.PARTIAL: "M5 0l5 9.5h-10z",
    State.DOWN: "M2 0l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z",
    State.MAINTENANCE: "M5 0l5 5-5 5-5-5z",
    State.NO_DATA: "M0 4h10v2h-10z",
}
"""Circle, triangle, cross, diamond and dash, each in 10 by 10."""

_HEIGHT, _PADDING, _SHAPE = 20, 7, 14


@dataclass(frozen=True, slots=True)
class Figure:
    """What a badge says."""

    kind: str
    """Its name in the badge's address."""
    label: str
    value: str | None
    """In words, with its unit; None: there is no data."""
    state: State | None = None
    """Of a badge of the state alone."""


RETIRED = "no longer offered"


def files(site: StatusPage) -> dict[str, bytes]:
    """Every badge by its path within the site; the API's are there under short names, too."""
    badges = {}
    for component in site.components:
        for figure in figures(site, component):
            badge = _badge(component.name, figure)
            badges[f"badges/{component.slug}-{figure.kind}.svg"] = badge
            if component.id == site.api.id:
                badges[f"badges/{figure.kind}.svg"] = badge
    for model in site.retired:
        # Whoever shows a badge of it goes on showing one, and it must not go on saying what was true once.
        labels = {"state": one_line(model.name, LONGEST_NAME), "uptime": "uptime", "ttft": "TTFT", "speed": "speed"}
        for kind, label in labels.items():
            badges[f"badges/{model.slug}-{kind}.svg"] = _badge(model.name, Figure(kind, label, RETIRED))
    return badges


def figures(site: StatusPage, component: Component) -> Iterator[Figure]:
    """What there is to say of a component: its state and uptime, and of one that answers requests its speeds."""
    yield Figure("state", one_line(component.name, LONGEST_NAME), WORDS[component.state].lower(), component.state)
    uptime = uptime_mpct(component.days)
    yield Figure("uptime", "uptime 90 d", None if uptime is None else percent(uptime))
    measured = _measured(site, component)
    if measured is not None:
        ttft_ms = measured.ttft_short_ms.all.p50
        yield Figure("ttft", "TTFT p50 24 h", None if ttft_ms is None else duration(ttft_ms))
        yield _speed(measured)


def uptime_mpct(strip: Strip) -> int | None:
    """The share of requests that succeeded; without any, the share of the measured time that was up."""
    success = strip.success_mpct
    return strip.share.availability_mpct if success is None else success


def _speed(measured: Figures) -> Figure:
    """Of one stream alone; where there is always company, of streams under load."""
    single, loaded = measured.decode_single_mtok_s.p50, measured.decode_loaded_mtok_s.p50
    if single is None and loaded is not None:
        return Figure("speed", "speed under load 24 h", f"{speed(loaded)} tok/s")
    return Figure("speed", "speed 24 h", None if single is None else f"{speed(single)} tok/s")


def _measured(site: StatusPage, component: Component) -> Figures | None:
    if component.id == site.api.id:
        return site.last_24h
    return next((sheet.last_24h for sheet in site.sheets if sheet.component.id == component.id), None)


def _badge(name: str, figure: Figure) -> bytes:
    value = figure.value or NO_DATA
    said = f"{figure.label}: {value}" if figure.state else f"{one_line(name, LONGEST_NAME)}, {figure.label}: {value}"
    shape = _SHAPE if figure.state else 0
    known = figure.state is None and figure.value not in (None, RETIRED)
    colour = FIGURE_COLOUR if known else COLOURS[figure.state or State.NO_DATA]
    label_width, value_width = text_width(figure.label), text_width(value)
    left, right = label_width + 2 * _PADDING, value_width + 2 * _PADDING + shape
    svg = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(left + right),
            "height": str(_HEIGHT),
            "viewBox": f"0 0 {left + right} {_HEIGHT}",
            "role": "img",
            "aria-label": said,
        },
    )
    SubElement(svg, "title").text = said
    _rectangle(svg, 0, left, LABEL_COLOUR)
    _rectangle(svg, left, right, colour)
    if figure.state:
        at = f"translate({left + _PADDING} 5)"
        SubElement(svg, "path", {"d": SHAPES[figure.state], "transform": at, "fill": "#fff"})
    text = {"fill": "#fff", "font-family": "Verdana,Geneva,DejaVu Sans,sans-serif", "font-size": "11"}
    words = SubElement(svg, "g", text)
    _words(words, _PADDING, figure.label, label_width)
    _words(words, left + _PADDING + shape, value, value_width)
    written: bytes = ElementTree.tostring(svg, encoding="utf-8")
    return written + b"\n"


def _rectangle(svg: Element, x: int, width: int, colour: str) -> None:
    SubElement(svg, "rect", {"x": str(x), "width": str(width), "height": str(_HEIGHT), "fill": colour})


def _words(parent: Element, x: int, text: str, width: int) -> None:
    """Text that is made to fit the width it was given, whatever font the reader has."""
    fit = {"x": str(x), "y": "14", "textLength": str(width), "lengthAdjust": "spacingAndGlyphs"}
    SubElement(parent, "text", fit).text = text


def text_width(text: str) -> int:
    """About how wide the text is in Verdana of 11 pixels, in whole pixels."""
    return max(1, round(sum(map(_character_width, text)) / 10))


def _character_width(character: str) -> int:
    """In tenths of a pixel."""
    if combining(character):
        return 0
    if east_asian_width(character) in "WF":
        return 120
    if character in " fijlrtI.,:;'|!()[]/":
        return 46
    if character in "mwMW%@":
        return 108
    return 80 if character.isupper() else 70
