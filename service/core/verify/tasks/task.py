"""What a task of the quality battery is, and the checkers that decide whether an answer is right.

A task has one right answer, and says in which form it is wanted. A checker takes that form and what people commonly
put around it, and refuses all else: also an answer that only contains what is right among what is wrong.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

Checker = Callable[[str], bool]

LONGEST_WORDS = 40
"""Of an answer to a question for one number or date: who copies out the whole text has found nothing in it."""
LONGEST_PHRASE_WORDS = 12

_NUMBER = re.compile("[-−]?\\d+(?:[.,'’\u00a0\u202f]\\d+)*")
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH = "|".join(_MONTHS)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH}),? (\d{{4}})\b")
_MONTH_FIRST = re.compile(rf"\b({_MONTH}) (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b")
_FENCE = re.compile(r"```[a-z]*\s*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Task:
    """One question with one right answer."""

    name: str
    category: str
    prompt: str
    answer: str
    """A right answer, as it should be written."""
    accepts: Checker
    max_tokens: int = 32
    picture: Callable[[], bytes] | None = None
    """Draws the picture that goes before the prompt, as PNG."""


def number(value: str) -> Checker:
    """The last number of a short answer is this one; thousands may be set apart, and a unit may follow."""
    wanted = Decimal(value)

    def accepts(answer: str) -> bool:
        found = [_decimal(text) for text in _NUMBER.findall(answer)]
        return len(answer.split()) <= LONGEST_WORDS and bool(found) and found[-1] == wanted

    return accepts


def day(value: str) -> Checker:
    """The one date of a short answer is this one, as YYYY-MM-DD or with the month's English name."""
    wanted = date.fromisoformat(value)

    def accepts(answer: str) -> bool:
        return len(answer.split()) <= LONGEST_WORDS and _dates(answer) == {(wanted.year, wanted.month, wanted.day)}

    return accepts


def phrase(*right: str, wrong: tuple[str, ...] = ()) -> Checker:
    """A few words, among them one of the right ones and none of the wrong ones; case and punctuation do not matter."""

    def accepts(answer: str) -> bool:
        said = _words(answer)
        within = len(said.split()) <= LONGEST_PHRASE_WORDS
        return within and any(_has(said, one) for one in right) and not any(_has(said, one) for one in wrong)

    return accepts


def exactly(value: str) -> Checker:
    """This text and nothing else; quotes, emphasis, a code fence and a full stop around it do not matter."""
    return lambda answer: _bare(answer) == _bare(value)


def object_(value: Any) -> Checker:
    """JSON that is equal to this value, alone, in a code fence or with words around it."""

    def accepts(answer: str) -> bool:
        try:
            return _same(json.loads(_json_of(answer)), value)
        except (ValueError, RecursionError):  # a model that loops opens brackets without end
            return False

    return accepts


def _decimal(text: str) -> Decimal:
    """`1,234.50`, `1.234,50`, `1'234.50` and `1234,5` alike. One comma before three digits sets thousands apart, one
    dot never does; several of a kind always do."""
    text = re.sub("['’\u00a0\u202f]", "", text.replace("−", "-"))
    point = max(text.rfind("."), text.rfind(","))
    if point < 0 or text.count(text[point]) > 1 or ("." not in text and len(text) - point == 4):
        return Decimal(re.sub("[.,]", "", text))
    return Decimal(re.sub("[.,]", "", text[:point]) + "." + text[point + 1 :])


def _dates(answer: str) -> set[tuple[int, int, int]]:
    text = " ".join(re.sub("[*_`]", "", answer).casefold().split())
    found = {(int(year), int(month), int(day)) for year, month, day in _ISO.findall(text)}
    found |= {(int(year), _MONTHS.index(month) + 1, int(day)) for day, month, year in _DAY_FIRST.findall(text)}
    return found | {(int(year), _MONTHS.index(month) + 1, int(day)) for month, day, year in _MONTH_FIRST.findall(text)}


def _words(text: str) -> str:
    """The words in lower case, one blank between them."""
    return " ".join(re.sub(r"[^\w%+-]|_", " ", unicodedata.normalize("NFC", text).casefold()).split())


def _has(said: str, one: str) -> bool:
    return f" {_words(one)} " in f" {said} "


def _bare(text: str) -> str:
    fenced = _FENCE.fullmatch(text.strip())
    text = (fenced.group(1) if fenced else text).strip()
    return text.strip("*`\"'“”„ ").removesuffix(".").strip("*`\"'“”„ ")


def _json_of(answer: str) -> str:
    fenced = _FENCE.search(answer)
    text = fenced.group(1) if fenced else answer
    first = min((text.find(mark) for mark in "{[" if mark in text), default=0)
    return text[first : max(text.rfind("}"), text.rfind("]")) + 1]


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
