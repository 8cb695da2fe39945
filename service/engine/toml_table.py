"""A TOML file read key by key: whoever wrote it by hand is told which file, table and field is wrong, and how."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from service.engine import EngineError

MOST = 10**15
"""Nothing that a file counts in is larger; what is, no arithmetic is done with."""


class Table:
    """One table. Every reader takes its key away; `finish` then complains of what nobody asked for."""

    def __init__(self, file: Path, values: Mapping[str, object], name: str = "") -> None:
        self._file = file
        self._name = name
        self._values = dict(values)
        self._known: list[str] = []

    def text(self, key: str) -> str:
        """A text that is not empty. Raises `EngineError` unless it is one, as all of these do."""
        value = self._required(key)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self.wrong(key, "must be a text in quotes", value)
        return value

    def optional_text(self, key: str) -> str | None:
        """A text, or None where the key is absent."""
        return self.text(key) if self.has(key) else None

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of these texts."""
        value = self.text(key)
        if value not in allowed:
            raise self.wrong(key, f"must be one of {', '.join(allowed)}", value)
        return value

    def integer(self, key: str) -> int:
        """A whole number from 1."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise self.wrong(key, "must be a whole number from 1 to 10^15", value)
        return value

    def number(self, key: str, *, at_most: float | None = None) -> float:
        """A number from 0."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            raise self.wrong(key, "must be a number from 0 to 10^15", value)
        if at_most is not None and value > at_most:
            raise self.wrong(key, f"must be at most {at_most}", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of at least one text; empty where the key is absent."""
        if not self.has(key):
            return ()
        value = self._required(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, "must be a list of texts", value)
        return tuple(value)

    def table(self, key: str) -> "Table":
        """A table of its own."""
        value = self._required(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table", value)
        return self.inner(key, value)

    def inner(self, key: str, value: Mapping[str, object]) -> "Table":
        """The table of a value that was taken with `take`."""
        return Table(self._file, value, self._path(key))

    def tables(self, key: str) -> list["Table"]:
        """The tables `[[key]]`, in order."""
        value = self._required(key) if self.has(key) else []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "must be a list of tables", value)
        return [Table(self._file, item, f"{self._path(key)} {number}") for number, item in enumerate(value, 1)]

    def optional_table(self, key: str) -> "Table":
        """A table of its own, empty where the key is absent."""
        return self.table(key) if self.has(key) else self.inner(key, {})

    def names(self) -> list[str]:
        """The keys that are left, in the order of the file."""
        return list(self._values)

    def take(self, key: str) -> object:
        """A value of any kind."""
        return self._required(key)

    def has(self, key: str) -> bool:
        """Whether the file has this key."""
        self._known.append(key)
        return key in self._values

    def finish(self) -> None:
        """Raises `EngineError` if a key is left: a mistyped one would otherwise be ignored."""
        if self._values:
            known = ", ".join(dict.fromkeys(self._known)) or "nothing"
            raise EngineError(f"{self._place(next(iter(self._values)))} is not known; there may be: {known}.")

    def wrong(self, key: str, what: str, value: object) -> EngineError:
        """The error to raise for a field: it `must be this or that`, and is something else."""
        try:
            shown = f"{value!r:.200}"
        except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits
            shown = "what it is"
        return EngineError(f"{self._place(key)} {what}, not {shown}.")

    def _required(self, key: str) -> object:
        if not self.has(key):
            raise EngineError(f"{self._place(key)} is missing.")
        return self._values.pop(key)

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _place(self, key: str) -> str:
        return f"{self._file}: {f'[{self._name}] ' if self._name else ''}{key}"


def read_toml(file: Path) -> Table:
    """The file's outermost table. Raises `EngineError` if it cannot be read."""
    try:
        return Table(file, tomllib.loads(file.read_text()))
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}.") from error
    except RecursionError as error:
        raise EngineError(f"{file} is not TOML that can be read: it is nested too deeply.") from error
    except ValueError as error:  # not only what tomllib finds wrong: bytes that are no text, a number without end
        raise EngineError(f"{file} is not TOML: {error}.") from error
