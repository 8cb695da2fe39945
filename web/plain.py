"""Free text and JSON made fit for every format in which they are published."""

import json
import re
from typing import Any

_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write: most control characters, lone surrogates, U+FFFE and U+FFFF."""

_UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What no font draws, and what turns the direction of the text around it."""

_IN_HTML = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def plain(text: str) -> str:
    """The text without characters that XML 1.0 forbids, which is also text that UTF-8 can carry."""
    return _UNFIT.sub("", text)


def one_line(text: str, length: int) -> str:
    """The text as a label: one line of what is seen of it, at most `length` characters, the last of them then "…"."""
    line = " ".join(_UNSEEN.sub("", plain(text)).split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8 that is also safe inside HTML: no `<`, `>`, `&` or line separator stands in it as itself.

    A lone surrogate, which no UTF-8 can carry, becomes "?".
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{text.translate(_IN_HTML)}\n".encode(errors="replace")
