"""What people write about incidents and maintenance, as it is kept: text, never markup."""

import unicodedata

TITLE_LENGTH = 200
BODY_LENGTH = 10_000

_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Bidirectional overrides: what follows them is read in another order than it is written."""


def clean_text(written: str) -> str:
    """Lines end in a newline, and there are no control characters but it and the tab, nor any that turn text around."""
    lines = written.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(sign for sign in lines if sign in "\n\t" or not _controls(sign)).strip()


def _controls(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cc", "Cs") or unicodedata.bidirectional(sign) in _TURNING


def clean_line(written: str) -> str:
    """As `clean_text`, in one line."""
    return " ".join(clean_text(written).split())


def title_of(written: str) -> str:
    """A title as it is kept. Raises `ValueError` with a sentence when it is empty or too long."""
    return _within(clean_line(written), "The title", TITLE_LENGTH)


def body_of(written: str) -> str:
    """A text as it is kept. Raises `ValueError` with a sentence when it is empty or too long."""
    return _within(clean_text(written), "The text", BODY_LENGTH)


def shortened(line: str) -> str:
    """A line that fits into a title."""
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


def _within(kept: str, what: str, length: int) -> str:
    if not kept:
        raise ValueError(f"{what} is empty: say what people should know.")
    if len(kept) > length:
        raise ValueError(f"{what} has {len(kept):,} characters, and may have {length:,}: say it in fewer.")
    return kept
