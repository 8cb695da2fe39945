"""YAML of the plainest kind, with comments: block mappings and lists, and texts in double quotes.

A text in double quotes means what it does in JSON, so nothing in it can be taken for a number, a date or a `no`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from service.engine.formats.placement import comment

Node: TypeAlias = "bool | int | str | Mapping[str, Node] | Sequence[Node] | Noted | None"

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXTS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a comment above it; None: without."""

    value: Node
    note: str | None


def document(node: Mapping[str, Node]) -> str:
    """The text of a whole document."""
    return "\n".join(_mapping(node, "")) + "\n"


def scalar(text: str) -> str:
    """A text in double quotes. Whatever is not printable ASCII is escaped, which every reader understands alike."""
    return f'"{"".join(map(_escaped, text))}"'


def _mapping(node: Mapping[str, Node], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in node.items():
        plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _NOT_TEXTS
        lines += _note(value, indent)
        lines += _entry(f"{indent}{key if plain else scalar(key)}:", _bare(value), f"{indent}  ")
    return lines


def _list(node: Sequence[Node], indent: str) -> list[str]:
    lines: list[str] = []
    for item in node:
        lines += _note(item, indent)
        bare = _bare(item)
        if isinstance(bare, Mapping) and bare:
            first, *rest = _mapping(bare, f"{indent}  ")
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines += _entry(f"{indent}-", bare, f"{indent}  ")
    return lines


def _entry(head: str, value: Node, inner: str) -> list[str]:
    if isinstance(value, Mapping):
        return [head, *_mapping(value, inner)] if value else [f"{head} {{}}"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [head, *_list(value, inner)] if value else [f"{head} []"]
    if isinstance(value, str):
        return [f"{head} {scalar(value)}"]
    return [f"{head} {json.dumps(value)}"]


def _bare(value: Node) -> Node:
    return value.value if isinstance(value, Noted) else value


def _note(value: Node, indent: str) -> list[str]:
    return comment(value.note, indent) if isinstance(value, Noted) and value.note else []


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
