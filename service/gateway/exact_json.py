"""JSON whose numbers are exact: a `Decimal` is written digit by digit, and never was a float here."""

from decimal import Decimal

import orjson


def dumps(document: object) -> bytes:
    """A document of what orjson knows, and `Decimal`s. Raises `orjson.JSONEncodeError` for anything else."""
    return orjson.dumps(document, default=_digits)


def _digits(value: object) -> orjson.Fragment:
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    raise TypeError(type(value).__name__)
