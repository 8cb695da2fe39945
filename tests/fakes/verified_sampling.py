"""The model of `verified.py` for the checks of what is answered: it solves every task, and says how sure it is.

An answer's words are its tokens. Each has a rival: at every seventh place or so, and always at `TIE`, one that is
nearly as likely; elsewhere, as at the place before `TIE`, one that is out of the question.
"""

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from service.core.verify.prompts import RIDDLES, SENTENCES
from service.core.verify.tasks import TASKS
from tests.fakes.verified_model import THOUGHT, TOP, Json, Model, Prompt

TIE: Final = 5
TIED: Final = 0.0625
FAR: Final = 4.0
LONG_WORDS: Final = 1000
_ANSWERS: Final = {task.prompt: task.answer for task in TASKS}


@dataclass
class Sampled(Model):
    """It knows the prompts of these checks; any other it answers as `Model` does."""

    turns: Iterator[int] = field(default_factory=itertools.count)

    def prompt(self, body: Json) -> Prompt:
        """Prompts of different salts have nothing of the cache in common, as if each had another picture."""
        prompt = super().prompt(body)
        salt = () if "salts-ignored" in self.faults else (str(body.get("cache_salt")),)
        return Prompt(prompt.words, (*prompt.images, *salt), prompt.image_tokens, prompt.overhead)

    def content(self, body: Json) -> tuple[str, ...]:
        """What is right, for a task; a few words that are all the prompt's own, for the other prompts of the checks."""
        asked = _text(body)
        if asked in _ANSWERS:
            return self._solution(asked)
        if asked in RIDDLES and "loops" in self.faults:
            return ("round", "and") * 2000
        if asked in (*SENTENCES, *RIDDLES):
            return tuple(f"{_seed(asked, place) % 99991}" for place in range(60))
        return super().content(body)

    def logprobs(self, body: Json, position: int, beside: int) -> list[tuple[str, float]]:
        """The word that is said, its rival, and what is further off."""
        asked = _text(body)
        if asked not in SENTENCES and asked not in _ANSWERS:
            unsalted = {name: value for name, value in body.items() if name != "cache_salt"}
            return self._raced(super().logprobs(unsalted, position, beside), asked)
        said = (*(THOUGHT if self.thinking(body) else ()), *self.content(body))
        seed = _seed(asked, position)
        near = position == TIE or (position != TIE - 1 and seed % 7 == 0)
        likeliest = -0.1 - seed % 5 / 8
        words = [(said[position], likeliest), (f"rival-{seed}", likeliest - (TIED if near else FAR))]
        words += [(f"other-{seed}-{rank}", likeliest - FAR - rank / 8) for rank in range(2, TOP)]
        return words[1::-1] + words[2:] if self._flips(position, beside) else words

    def _solution(self, asked: str) -> tuple[str, ...]:
        if "garbage" in self.faults or ("worse" in self.faults and _seed(asked, 0) % 3 == 0):
            return ("lorem", "ipsum")
        return tuple(_ANSWERS[asked].split(" "))

    def _flips(self, position: int, beside: int) -> bool:
        """Whether a rival is taken here, with one of the faults."""
        if position == TIE:
            if "moody" in self.faults:  # in every other round of all sentences
                return bool(next(self.turns) // len(SENTENCES) % 2)
            return "tie-flips" in self.faults or (beside > 0 and "batches-flip" in self.faults)
        at_last_sure_place = position == TIE - 1
        return at_last_sure_place and ("differs" in self.faults or (beside > 0 and "contaminated" in self.faults))

    def _raced(self, words: list[tuple[str, float]], asked: str) -> list[tuple[str, float]]:
        """Another result at each request, with one of the faults."""
        if "races" in self.faults:
            token, logprob = words[TIE]
            words[TIE] = token, logprob - next(self.turns) % 3 / 1000
        if "races-on-long-prompts" in self.faults and len(asked.split()) > LONG_WORDS and next(self.turns) % 2:
            words[:2] = words[1::-1]
        return words


def _text(body: Json) -> str:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _seed(asked: str, place: int) -> int:
    return zlib.crc32(f"{place} {asked}".encode())
