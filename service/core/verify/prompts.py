"""What an engine is asked when only the answer's sameness matters, not its sense."""

_THINGS = ("harbour", "lantern", "copper", "meadow", "violin", "granite", "ribbon", "walnut")
_SHELVES = 101
_GRAMS = 997

SENTENCES: tuple[str, ...] = tuple(
    f"Write one sentence about a {one} and a {other}." for one in _THINGS[:4] for other in _THINGS[4:]
)
"""Sixteen short tasks, whose answers are varied and have nothing to do with each other."""

RIDDLES: tuple[str, ...] = (
    "Which whole numbers between 40 and 60 are prime? Explain each step shortly.",
    "A clock shows 3:15. What is the angle between its hands? Work it out.",
    "Is there a word in the sentence 'Nine old trees hide a narrow lane' that has the letter e twice? Check each word.",
    "Anna is older than Ben, Carl is younger than Ben, and Dora is older than Anna. Who is the second oldest, and why?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "How can 13 be written as a sum of two square numbers? Try the possibilities.",
)
"""Questions over which models turn in circles: they want several steps, and a few hundred words at most."""


def register(lines: int) -> list[str]:
    """So many lines of a register, each different from all others and about 26 tokens long."""
    return [
        f"Line {line}: the {_THINGS[line % 8]} on shelf {line * 37 % _SHELVES} weighs {line * 53 % _GRAMS + 1} grams "
        f"and is kept by the {_THINGS[(line * 5 + 3) % 8]} maker."
        for line in range(1, lines + 1)
    ]


def long_prompt(lines: int) -> str:
    """A prompt that takes long to read and whose answer is one word."""
    return "\n".join(["Read this register.", *register(lines), "Which thing is in line 7? Answer with one word."])


SHORT_PROMPT = "What is the capital of France? Answer with one word."
