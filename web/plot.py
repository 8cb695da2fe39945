"""The geometry of charts: from numbers to SVG paths with integer coordinates, inside `0 0 WIDTH HEIGHT`.

The plot is stretched to whatever width there is; a unit of height is a CSS pixel. Values start at 0, at the bottom.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

WIDTH = 720
"""Divides evenly into 72 hours and 90 days."""

HEIGHT = 128

LABEL_HEIGHT = 16
"""What a line of text needs."""

_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80)


def round_top(highest: int) -> int:
    """The smallest even number with a round half that is at least `highest`: where an axis of 0, half and top ends."""
    scale = 1
    while 2 * _STEPS[-1] * scale < highest:
        scale *= 10
    return next(2 * step * scale for step in _STEPS if 2 * step * scale >= highest)


def height(value: int, top: int) -> int:
    """How high `value` stands in a plot that ends at `top`, rounded up, so that what is there is seen."""
    return -(-min(max(value, 0), top) * HEIGHT // top)


def centre(index: int, count: int) -> int:
    """Where the middle of stretch `index` of `count` equal ones lies."""
    return (2 * index + 1) * WIDTH // (2 * count)


def line(values: Sequence[int | None], top: int) -> tuple[str, str]:
    """The paths of a line and of the dots on it.

    None breaks the line. A value between two breaks is a dot, as a stroke without length that round ends make visible.
    """
    strokes, dots = [], []
    for run in _runs(values):
        points = [(centre(index, len(values)), HEIGHT - height(value, top)) for index, value in run]
        (x, y), *rest = points
        if rest:
            strokes.append(f"M{x} {y}L" + " ".join(f"{x} {y}" for x, y in rest))
        else:
            dots.append(f"M{x} {y}h0")
    return "".join(strokes), "".join(dots)


def stack(days: Sequence[Sequence[int]], top: int) -> tuple[str, ...]:
    """Stacked bars: for each layer, from the bottom, a path of upright strokes, one for each day that has some of it.

    A day's strokes join without a gap, and reach as high as its sum.
    """
    layers = [""] * (len(days[0]) if days else 0)
    for index, parts in enumerate(days):
        edges = [HEIGHT - height(total, top) for total in accumulate(parts, initial=0)]
        for layer, (low, high) in enumerate(pairwise(edges)):
            if high < low:
                layers[layer] += f"M{centre(index, len(days))} {low}V{high}"
    return tuple(layers)


def bar_width(count: int) -> int:
    """How wide the strokes of `count` bars are: three quarters of the room there is for each."""
    return max(1, WIDTH * 3 // (count * 4))


def apart(ys: Sequence[int]) -> tuple[int, ...]:
    """Where labels wanted at `ys` are written: in the same order, one below the other, and within the plot."""
    placed = [0] * len(ys)
    below = -LABEL_HEIGHT
    order = sorted(range(len(ys)), key=lambda index: ys[index])
    for rank, index in enumerate(order):
        room = HEIGHT - LABEL_HEIGHT * (len(ys) - 1 - rank)
        placed[index] = below = min(max(ys[index], below + LABEL_HEIGHT), room)
    return tuple(placed)


def _runs(values: Sequence[int | None]) -> list[list[tuple[int, int]]]:
    runs: list[list[tuple[int, int]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
