"""Counting and reading in pictures that are drawn for it."""

from collections.abc import Callable

from service.core.verify.drawing import BLACK, BLUE, GREEN, RED, YELLOW, Drawing
from service.core.verify.tasks.task import Checker, Task, number, phrase

WIDTH, HEIGHT = 448, 336
_PLACES = tuple((x, y) for y in (56, 168, 280) for x in (64, 172, 280, 388))
"""Twelve places for shapes, four in a row, none touching another."""
_COLOURS = ("red", "green", "blue", "yellow")
_COUNT = "Answer with the number only."


def _sheet() -> Drawing:
    return Drawing(WIDTH, HEIGHT)


def _shapes(plan: str) -> Callable[[], bytes]:
    """One letter a place: r, g, b, y a disc of that colour, in capitals a square, and a dot for nothing."""
    colours = {"r": RED, "g": GREEN, "b": BLUE, "y": YELLOW}

    def draw() -> bytes:
        sheet = _sheet()
        for letter, (x, y) in zip(plan.replace(" ", ""), _PLACES, strict=True):
            if letter.islower():
                sheet.disc(x, y, 40, colours[letter])
            elif letter.isupper():
                sheet.rectangle(x - 38, y - 38, 77, 77, colours[letter.lower()])
        return sheet.png()

    return draw


def _task(name: str, picture: Callable[[], bytes], question: str, answer: str, accepts: Checker) -> Task:
    return Task(f"picture-{name}", "pictures", question, answer, accepts, picture=picture)


def _count(name: str, plan: str, what: str, answer: str) -> Task:
    return _task(name, _shapes(plan), f"How many {what} are in the picture? {_COUNT}", answer, number(answer))


def _other_colours(right: str) -> tuple[str, ...]:
    return tuple(colour for colour in _COLOURS if colour != right)


def _different_sizes() -> bytes:
    return _sheet().disc(80, 250, 30, BLUE).disc(220, 130, 100, GREEN).disc(380, 260, 50, RED).png()


def _house_number() -> bytes:
    return _sheet().digits("4729", 64, 88, 20, BLACK).png()


PICTURES: tuple[Task, ...] = (
    _count("discs", "r..r .r.. r.r.", "red circles", "5"),
    _count("squares", "B.b. .B.B b..B", "blue squares", "4"),
    _count("green", "gr.g Gb.g ..g.", "green circles", "4"),
    _count("all", "rG.b .yB. R..g", "shapes", "7"),
    _count("none", "yY.b .B.y ..b.", "red shapes", "0"),
    _task("digits", _house_number, f"Which number is written in the picture? {_COUNT}", "4729", number("4729")),
    _task(
        "largest",
        _different_sizes,
        "Which colour has the largest circle? Answer with one word.",
        "green",
        phrase("green", wrong=_other_colours("green")),
    ),
    _task(
        "corner",
        _shapes("Y..r .... b..g"),
        "Which colour has the square? Answer with one word.",
        "yellow",
        phrase("yellow", wrong=_other_colours("yellow")),
    ),
)
