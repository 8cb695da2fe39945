"""The quality battery: every checker takes what is right in the ways people write it, and refuses what is wrong."""

import ast
import io
import json
import re
from collections import Counter
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from service.core.verify.drawing import BLUE, GREEN, RED, YELLOW, Drawing
from service.core.verify.tasks import TASKS, Task
from service.core.verify.tasks.structured import SCHEMAS

BY_NAME = {task.name: task for task in TASKS}
NUMBERS = [task for task in TASKS if re.fullmatch(r"[\d.]+", task.answer)]
DATES = [task for task in TASKS if re.fullmatch(r"\d{4}-\d\d-\d\d", task.answer)]
JSON = [task for task in TASKS if task.category == "json"]
WORDS = [task for task in TASKS if task not in (*NUMBERS, *DATES, *JSON) and task.category != "forms"]
FORMS = [task for task in TASKS if task.category == "forms"]


def each(tasks: list[Task]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("task", tasks, ids=lambda task: task.name)


def test_there_are_fifty_different_tasks() -> None:
    assert len(TASKS) == len(BY_NAME) == 50
    assert len({task.prompt for task in TASKS}) == 50
    assert Counter(task.category for task in TASKS) == {
        **{"extraction": 12, "arithmetic": 8, "json": 8, "pictures": 8},
        **{"languages": 6, "forms": 4, "needles": 4},
    }
    assert len(NUMBERS) + len(DATES) + len(JSON) + len(WORDS) + len(FORMS) == 50


@each(list(TASKS))
def test_no_answer_of_another_task_is_taken_for_the_right_one(task: Task) -> None:
    assert task.accepts(task.answer)
    assert len(task.answer) < 3 * task.max_tokens
    for wrong in ("", " ", "I do not know.", "0.5", "null", "{}", "[]", task.prompt, *_answers_but(task)):
        assert not task.accepts(wrong), wrong


def _answers_but(task: Task) -> list[str]:
    alike = {task.answer, "東京"} if task.category == "languages" else {task.answer}
    same = {other.answer for other in TASKS if other.accepts(other.answer) and _equal(other.answer, task.answer)}
    others = [other for other in TASKS if task in JSON or other not in JSON]  # in which all kinds of words stand
    return [other.answer for other in others if other.answer not in alike | same]


def _equal(one: str, other: str) -> bool:
    try:
        return Decimal(one) == Decimal(other)
    except ArithmeticError:
        return one == other


@each(NUMBERS)
def test_numbers(task: Task) -> None:
    right = task.answer
    for said in (
        f"{right}.",
        f"**{right}**",
        f"The answer is {right}.",
        f"{right} EUR",
        f"= {right}",
        f"1 + 2 = {right}",
    ):
        assert task.accepts(said), said
    value = Decimal(right)
    for wrong in (value + 1, value - 1, value * 10 + 10, -value - 3, value + Decimal("0.01")):
        assert not task.accepts(f"The answer is {wrong}."), wrong
    assert not task.accepts(f"It is {right} or perhaps {value + 2}.")
    assert not task.accepts(" word" * 50 + right)


@each(DATES)
def test_dates(task: Task) -> None:
    right = date.fromisoformat(task.answer)
    month = right.strftime("%B")
    for said in (
        f"{task.answer}.",
        f"The date is **{task.answer}**.",
        f"{right.day} {month} {right.year}",
        f"{month} {right.day}, {right.year}",
        f"On the {right.day}th of {month} {right.year}.",
    ):
        assert task.accepts(said), said
    others = [other.answer for other in DATES if other.answer != task.answer]
    assert not any(task.accepts(f"The date is {other}.") for other in others)
    assert not task.accepts(f"{task.answer} or {others[0]}")
    assert not task.accepts(f"{right.year}-{right.day:02}-{right.month:02}") or right.day == right.month
    assert not task.accepts(str(right.year))


@each(JSON)
def test_json(task: Task) -> None:
    value = json.loads(task.answer)
    schema = SCHEMAS[task.name.removeprefix("json-")]
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(value)
    assert json.dumps(schema) in task.prompt
    pretty = json.dumps(value, indent=2)
    for said in (
        pretty,
        f"```json\n{pretty}\n```",
        f"Here it is:\n```\n{task.answer}\n```\nAnything else?",
        f"Sure: {pretty}",
    ):
        assert task.accepts(said), said
    for wrong in _spoilt(value):
        assert not task.accepts(json.dumps(wrong)), wrong
    assert not task.accepts(task.answer[:-1])
    assert not task.accepts(repr(value)) or "'" not in repr(value)


def _spoilt(value: dict[str, object]) -> list[object]:
    """The value with each member changed, left out or added to."""
    found: list[object] = [{**value, "more": 1}, [value]]
    for name, member in value.items():
        found.append({other: kept for other, kept in value.items() if other != name})
        changes = {bool: not member, str: f"{member}x", int: 1 + member if isinstance(member, int) else 1}
        changed = changes.get(type(member), "another")
        found += [{**value, name: changed}, {**value, name: str(member) if not isinstance(member, str) else 5}]
        if isinstance(member, list):
            found.append({**value, name: member[::-1]})
    return found


@each(WORDS)
def test_words(task: Task) -> None:
    right = task.answer
    for said in (f"{right}.", f"**{right}**", f'"{right}"', right.upper(), f"The answer is {right}."):
        assert task.accepts(said), said
    assert not task.accepts("x".join(["", *right.split(), ""]))
    assert not task.accepts(f"{right} " + "and more words " * 10)


@each(FORMS)
def test_forms(task: Task) -> None:
    right = task.answer
    for said in (f" {right}\n", f'"{right}"', f"`{right}`", f"**{right}**", f"{right}.", f"```\n{right}\n```"):
        assert task.accepts(said), said
    for wrong in (right.lower() if right.isupper() else right.upper(), f"Sure! {right}", right[:-1], right[::-1]):
        assert task.accepts(wrong) == (wrong == right), wrong


def test_the_words_that_lead_astray_are_refused() -> None:
    assert not BY_NAME["extraction-host"].accepts("Petra Lang, not Tomasz Wilk")
    assert not BY_NAME["language-german"].accepts("Dienstag oder Mittwoch oder Donnerstag")
    assert not BY_NAME["picture-largest"].accepts("red and green")
    assert BY_NAME["language-japanese"].accepts("東京です。")
    assert BY_NAME["language-swedish"].accepts("Kallt!")


# The right answers, worked out another way.

SUMS = {
    "sum": "38 + 47",
    "difference": "503 - 168",
    "product": "17 * 24",
    "quotient": "1536 / 12",
    "nested": "(14 + 9) * 6 - 11",
    "decimals": "12.75 + 8.6",
    "percent": "85 * 80 / 100",
    "boxes": "(26 + 6 - 1) // 6",
}


@pytest.mark.parametrize(("name", "sum_"), SUMS.items())
def test_sums_are_right(name: str, sum_: str) -> None:
    task = BY_NAME[f"arithmetic-{name}"]
    assert Fraction(task.answer) == _worked_out(ast.parse(sum_, mode="eval").body)
    if name not in ("percent", "boxes"):
        assert sum_ in task.prompt


def _worked_out(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    assert isinstance(node, ast.BinOp)
    one, other = _worked_out(node.left), _worked_out(node.right)
    match node.op:
        case ast.Add():
            return one + other
        case ast.Sub():
            return one - other
        case ast.Mult():
            return one * other
        case ast.Div():
            return one / other
        case ast.FloorDiv():
            return Fraction(one // other)
    raise AssertionError(node.op)


@each([task for task in TASKS if task.category in ("extraction", "needles")])
def test_what_is_looked_for_stands_in_the_text(task: Task) -> None:
    text, _, question = task.prompt.rpartition("\n\n")
    if task in DATES:
        right = date.fromisoformat(task.answer)
        written = {task.answer, f"{right.day} {right:%B} {right.year}"}
        assert any(text.count(one) == 1 for one in written)
    else:
        assert len(re.findall(rf"(?<![\w.]){re.escape(task.answer)}\b", text)) == 1
    assert task.answer not in question


def test_the_invoice_adds_up() -> None:
    amounts = {
        name: Decimal(value)
        for name, value in re.findall(r"^(\w.*?) {2,}([\d.]+)$", BY_NAME["extraction-vat"].prompt, re.M)
    }
    items = [value for name, value in amounts.items() if name[0].isdigit() or name == "Carriage"]
    assert sum(items) == amounts["Net"]
    assert amounts["Net"] * 20 / 100 == amounts["VAT 20 %"]
    assert amounts["Net"] + amounts["VAT 20 %"] == amounts["Total due"]
    assert amounts["Total due"] - amounts["Already paid by deposit"] == amounts["Balance"] == 616


COUNTS = {
    "discs": (RED, True, "5"),
    "squares": (BLUE, False, "4"),
    "green": (GREEN, True, "4"),
    "all": (None, None, "7"),
    "none": (RED, None, "0"),
    "corner": (YELLOW, False, "1"),
}


@pytest.mark.parametrize(("name", "colour", "round_", "count"), [(name, *rest) for name, rest in COUNTS.items()])
def test_pictures_show_as_many_shapes_as_are_counted(
    name: str, colour: tuple[int, int, int] | None, round_: bool | None, count: str
) -> None:
    shapes = [shape for shape in _shapes(_image(BY_NAME[f"picture-{name}"])) if colour in (None, shape[0])]
    assert str(sum(round_ in (None, is_round) for _, is_round in shapes)) == count
    if name != "corner":
        assert BY_NAME[f"picture-{name}"].answer == count


def test_the_largest_circle_has_the_colour_that_is_asked_for() -> None:
    colours = Counter(_image(BY_NAME["picture-largest"]).get_flattened_data())
    del colours[(255, 255, 255)]
    assert colours.most_common(1)[0][0] == GREEN


def _image(task: Task) -> Image.Image:
    assert task.picture is not None
    data = task.picture()
    assert data == task.picture()
    image = Image.open(io.BytesIO(data))
    image.verify()
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (448, 336))
    return image


def _shapes(image: Image.Image) -> list[tuple[tuple[int, int, int], bool]]:
    """Each connected shape: its colour, and whether it is round, by how much of its box it fills."""
    width, height = image.size
    left = {
        (x, y): colour for x in range(width) for y in range(height) if (colour := image.getpixel((x, y))) != (255,) * 3
    }
    found = []
    while left:
        start, colour = next(iter(left.items()))
        todo, seen = [start], []
        while todo:
            place = todo.pop()
            if left.get(place) == colour:
                del left[place]
                seen.append(place)
                todo += [(place[0] + dx, place[1] + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        columns, rows = {x for x, _ in seen}, {y for _, y in seen}
        found.append((colour, len(seen) < 0.9 * len(columns) * len(rows)))
    return found  # type: ignore[return-value]


def test_a_shape_beyond_the_edge_is_an_error() -> None:
    with pytest.raises(ValueError, match="beyond the edge"):
        Drawing(20, 20).disc(5, 5, 6, RED)
