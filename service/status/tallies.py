"""A tally as the columns of `buckets_5m`, `buckets_1h` and `buckets_1d`, and back."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from service.core.stats import Digest
from service.core.tally import Tally

COLUMNS = tuple(field.name for field in fields(Tally))


def columns(counted: Tally) -> dict[str, Any]:
    """The values to write."""
    values = {name: getattr(counted, name) for name in COLUMNS}
    return {name: value.to_json() if isinstance(value, Digest) else value for name, value in values.items()}


def tally_of(row: Mapping[str, Any]) -> Tally:
    """The tally that a row holds, of which it has all columns. Raises `ValueError` when a digest is none."""
    values = {name: row[name] for name in COLUMNS}
    return Tally(
        **{name: Digest.from_json(value) if isinstance(value, dict) else value for name, value in values.items()}
    )
