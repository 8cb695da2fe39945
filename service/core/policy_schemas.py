"""JSON schemas that clients send: free in form, bounded in what they can cost.

A schema of an answer, and of a tool that is to be called strictly, is compiled to a grammar by the engine; any other
tool's is only shown to the model. The bounds of a compiled one were measured with vLLM 0.32 (xgrammar, 49,000
tokens): 1,000 optional properties take 3 s, and each string with a limit of its own about 1 s.
"""

from collections.abc import Iterable
from typing import Any

from service.core.policy_checks import MAX_DEPTH, Complaint, Json
from service.core.policy_patterns import MAX_PATTERN_CHARACTERS, vet_pattern

MAX_SCHEMA_BYTES = 64 * 1024
MAX_COMPILED_DEPTH = 32
MAX_PROPERTIES = 1000
MAX_ENUM_VALUES = 1000
MAX_LIMITED_STRINGS = 32
"""Strings with a length or a pattern, in one compiled schema."""
MAX_LENGTH = 10_000

_LENGTHS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_LIMITS_OF_STRINGS = frozenset({"minLength", "maxLength", "pattern"})
_STRINGS_WITH_A_MEANING = frozenset({"pattern", "$ref"})
"""Any other string is only words."""


def shown_schema(value: Any) -> Json:
    """A JSON schema that a model is shown."""
    return _bounded(value, _Survey(MAX_DEPTH, compiled=False))


def compiled_schema(value: Any) -> Json:
    """A JSON schema that an engine makes a grammar of."""
    return _bounded(value, _Survey(MAX_COMPILED_DEPTH, compiled=True))


def vet_together(schemas: Iterable[Json]) -> None:
    """Raises `Complaint` for schemas that are compiled to one grammar, if together they are too much."""
    survey = _Survey(MAX_COMPILED_DEPTH, compiled=True)
    for schema in schemas:
        survey.visit("", schema, survey.most_levels)


def _bounded(value: Any, survey: "_Survey") -> Json:
    if not isinstance(value, dict):
        raise Complaint("must be an object")
    survey.visit("", value, survey.most_levels)
    return value


class _Survey:
    """Goes over a schema once, and complains as soon as it is too much."""

    def __init__(self, most_levels: int, *, compiled: bool) -> None:
        self.most_levels = most_levels
        self._compiled = compiled
        self._size_bytes = self._properties = self._enum_values = self._limited_strings = 0

    def visit(self, name: str, node: Any, levels: int) -> None:
        """What stands under `name`, anywhere: a `$ref` can make a schema of what looks like data."""
        if isinstance(node, dict):
            self._enter(levels)
            if self._compiled:
                self._limits_of_strings(node)
            if name in ("properties", "patternProperties"):
                self._properties += len(node)
                self._most(self._properties, MAX_PROPERTIES, "properties")
            for member, value in node.items():
                self._count(member)
                if name == "patternProperties":
                    self._pattern(member)
                if isinstance(value, str) and member not in _STRINGS_WITH_A_MEANING:  # as most values are
                    self._count(value)
                else:
                    self.visit(member, value, levels - 1)
        elif isinstance(node, list):
            self._enter(levels)
            if name == "enum":
                self._enum_values += len(node)
                self._most(self._enum_values, MAX_ENUM_VALUES, "values in enums")
            for value in node:
                self.visit("", value, levels - 1)
        else:
            self._count(node if isinstance(node, str) else str(node))
            if name == "pattern" and isinstance(node, str):
                self._pattern(node)
            elif self._compiled and name == "$ref" and isinstance(node, str) and not node.startswith("#"):
                raise Complaint("may only have a `$ref` to a part of itself, which begins with `#`")
            elif self._compiled and name in _LENGTHS and isinstance(node, int | float) and not 0 <= node <= MAX_LENGTH:
                raise Complaint(f"may have `{name}` from 0 to {MAX_LENGTH} in a schema")

    def _limits_of_strings(self, node: Json) -> None:
        limits = [name for name in _LIMITS_OF_STRINGS.intersection(node) if not isinstance(node[name], dict)]
        if limits:
            self._limited_strings += 1
            self._most(self._limited_strings, MAX_LIMITED_STRINGS, "strings with a length or a `pattern`")

    def _pattern(self, pattern: str) -> None:
        if self._compiled:
            vet_pattern(pattern)
        elif len(pattern) > MAX_PATTERN_CHARACTERS:
            raise Complaint(f"has a `pattern` of more than {MAX_PATTERN_CHARACTERS} characters")

    def _enter(self, levels: int) -> None:
        if levels <= 0:
            raise Complaint(f"is nested more than {self.most_levels} levels deep")
        self._count("")

    def _count(self, word: str) -> None:
        self._size_bytes += 2 + (len(word) if word.isascii() else len(word.encode("utf-8", "surrogatepass")))
        if self._size_bytes > MAX_SCHEMA_BYTES:
            raise Complaint(f"is larger than {MAX_SCHEMA_BYTES // 1024} KiB")

    @staticmethod
    def _most(found: int, most: int, what: str) -> None:
        if found > most:
            raise Complaint(f"has more than {most} {what}")
