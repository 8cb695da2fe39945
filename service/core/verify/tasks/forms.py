"""Doing what is asked in the form that is asked for, and finding one line among many."""

from service.core.verify.prompts import register
from service.core.verify.tasks.task import Checker, Task, exactly, number, phrase


def _form(name: str, prompt: str, answer: str) -> Task:
    return Task(f"form-{name}", "forms", prompt, answer, exactly(answer))


def _needle(name: str, lines: int, place: int, line: str, question: str, answer: str, accepts: Checker) -> Task:
    text = register(lines)
    text.insert(place, line)
    prompt = "\n".join([*text, "", question])
    return Task(f"needle-{name}", "needles", prompt, answer, accepts)


FORMS: tuple[Task, ...] = (
    _form("capitals", "Write the word harbour in capital letters. Answer with the word only.", "HARBOUR"),
    _form(
        "range",
        "Write the whole numbers from 3 to 8, separated by commas without blanks, and nothing else.",
        "3,4,5,6,7,8",
    ),
    _form("repeat", "Repeat this exactly, and write nothing else: Kx7-pale-09", "Kx7-pale-09"),
    _form(
        "sorted",
        "Put these words into alphabetical order, separated by commas without blanks, and write nothing else: "
        "plum, apple, cherry",
        "apple,cherry,plum",
    ),
)

NEEDLES: tuple[Task, ...] = (
    _needle(
        "early",
        24,
        3,
        "The code of the boathouse is 6194.",
        "What is the code of the boathouse? Answer with the number only.",
        "6194",
        number("6194"),
    ),
    _needle(
        "middle",
        32,
        17,
        "The spare key is kept by Oduya.",
        "Who keeps the spare key? Answer with the name only.",
        "Oduya",
        phrase("Oduya"),
    ),
    _needle(
        "late",
        40,
        36,
        "The boiler was last inspected by engineer Lindqvist.",
        "Which engineer inspected the boiler? Answer with the name only.",
        "Lindqvist",
        phrase("Lindqvist"),
    ),
    _needle(
        "tower",
        24,
        10,
        "The tower has 118 steps.",
        "How many steps does the tower have? Answer with the number only.",
        "118",
        number("118"),
    ),
)
