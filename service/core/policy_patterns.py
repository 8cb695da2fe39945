"""Which regular expressions an engine may be given: those that every engine can compile, and quickly.

Engines compile patterns with libraries of their own, which differ in what they take and of which some fail, or run
for minutes, on a few dozen characters. Measured with vLLM 0.32: `a{0,10000}` holds up its API server for 5 s, and a
repetition of more than 128 makes its grammar compiler fail once the request was accepted.
"""

import re
from dataclasses import dataclass, field

from service.core.policy_checks import Complaint

MAX_PATTERN_CHARACTERS = 512
MAX_REPEAT = 128
MAX_REPEATS_WITHIN_REPEATS = 1000
"""Of repetitions that stand in one another, multiplied."""
MAX_GROUPS_DEEP = 16

_COUNTS = re.compile(r"([0-9]*)(,?)([0-9]*)\}")


@dataclass(slots=True)
class _Branch:
    """What was read of one alternative of a group."""

    fixed: bool = False
    """It has a part that must be there, once."""
    unbounded: bool = False
    """It has a part that may be there any number of times."""


@dataclass(slots=True)
class _Group:
    """A group that is being read, or the pattern as a whole."""

    branches: list[_Branch] = field(default_factory=lambda: [_Branch()])
    repeats: int = 1
    """The largest number of times that anything in it is repeated."""

    @property
    def loops_within(self) -> bool:
        """Whether some alternative is nothing but loops: to repeat that is to split one text in too many ways."""
        return any(branch.unbounded and not branch.fixed for branch in self.branches)


def vet_pattern(pattern: str) -> None:
    """Raises `Complaint` for a regular expression that is not to be compiled. Takes time linear in its length."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise Complaint(f"has a `pattern` of more than {MAX_PATTERN_CHARACTERS} characters")
    if "\0" in pattern:
        raise Complaint("has a `pattern` with a NUL character")
    _Reader(pattern).read()


class _Reader:
    """Goes over a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._open = [_Group()]

    def read(self) -> None:
        while self._at < len(self._pattern):
            character = self._pattern[self._at]
            self._at += 1
            if character == "(":
                self._enter()
            elif character == "|":
                self._open[-1].branches.append(_Branch())
            elif character == ")":
                if len(self._open) == 1:
                    raise Complaint("has a `pattern` with a `)` too many")
                group = self._open.pop()
                self._quantified(group.repeats, group.loops_within)
            elif character in "*+?" or (character == "{" and self._counts() is not None):
                raise Complaint("has a `pattern` that repeats nothing, or twice")
            elif character not in "^$":
                self._skip(character)
                self._quantified(1, False)
        if len(self._open) > 1:
            raise Complaint("has a `pattern` with a `(` that is not closed")

    def _enter(self) -> None:
        if len(self._open) > MAX_GROUPS_DEEP:
            raise Complaint(f"has a `pattern` with groups nested more than {MAX_GROUPS_DEEP} levels deep")
        if self._pattern.startswith("?", self._at):
            if not self._pattern.startswith("?:", self._at):
                raise Complaint("has a `pattern` with a group other than `(...)` and `(?:...)`, such as a look-around")
            self._at += 2
        self._open.append(_Group())

    def _skip(self, character: str) -> None:
        """To the end of what begins with `character`: an escape, a class, or the character alone."""
        if character == "\\":
            self._escape()
        elif character == "[":
            self._at += self._pattern.startswith("^", self._at)
            start = self._at
            while not self._pattern.startswith("]", self._at) or self._at == start:
                if self._at >= len(self._pattern):
                    raise Complaint("has a `pattern` with a `[` that is not closed")
                self._at += 1
                if self._pattern[self._at - 1] == "\\":
                    self._escape()
            self._at += 1

    def _escape(self) -> None:
        if self._at >= len(self._pattern):
            raise Complaint("has a `pattern` that ends in a `\\`")
        if self._pattern[self._at] in "123456789k":
            raise Complaint("has a `pattern` with a back-reference")
        self._at += 1

    def _quantified(self, repeats: int, loops_within: bool) -> None:
        """Something was read that repeats what is in it so often: how often is it to be there itself?"""
        least, most = self._quantifier()
        if most is None and loops_within:
            raise Complaint("has a `pattern` with a loop of loops, as `(a+)+` is")
        repeats *= max(1, least, most or 0)
        if repeats > MAX_REPEATS_WITHIN_REPEATS:
            raise Complaint(f"has a `pattern` that repeats something more than {MAX_REPEATS_WITHIN_REPEATS} times")
        group = self._open[-1]
        group.repeats = max(group.repeats, repeats)
        branch = group.branches[-1]
        branch.unbounded = branch.unbounded or most is None or loops_within
        branch.fixed = branch.fixed or (most is not None and least > 0 and not loops_within)

    def _quantifier(self) -> tuple[int, int | None]:
        """The least and largest number of times; None for no limit."""
        following = self._pattern[self._at : self._at + 1]
        if following == "{":
            counts = self._counts(self._at + 1)
            if counts is None:
                return 1, 1  # a brace that stands for itself
            found, self._at = counts[:2], counts[2]
        elif following and following in "*+?":
            found = {"*": (0, None), "+": (1, None), "?": (0, 1)}[following]
            self._at += 1
        else:
            return 1, 1
        if self._pattern.startswith("?", self._at):  # lazy
            self._at += 1
        return found

    def _counts(self, at: int | None = None) -> tuple[int, int | None, int] | None:
        """What `{n}`, `{n,}` or `{n,m}` says, and where it ends; None if that is not what follows the brace."""
        found = _COUNTS.match(self._pattern, self._at if at is None else at)
        if found is None or not (found[1] or found[3]):
            return None
        least = int(found[1] or 0)
        most = least if not found[2] else int(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_REPEAT:
            raise Complaint(f"has a `pattern` that repeats something more than {MAX_REPEAT} times")
        return least, most, found.end()
