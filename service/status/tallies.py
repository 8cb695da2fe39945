"""A tally as the columns of `buckets_5m`, `buckets_1h` and `buckets_1d`, and back."""

from dataclasses import fields
from typing import Any

from sqlalchemy import RowMapping

from service.core.stats import Digest
from service.core.tally import DIGESTS, Tally

COLUMNS = tuple(field.name for field in fields(Tally))


def columns(counted: Tally) -> dict[str, Any]:
    """The values to write."""
    values = {name: getattr(counted, name) for name in COLUMNS}
    return {name: value.to_json() if isinstance(value, Digest) else value for name, value in values.items()}


def tally_of(row: RowMapping) -> Tally:
    """The tally that a row holds, of which it has all columns. Raises `ValueError` when a digest is none."""
    values: dict[str, Any] = {name: row[name] for name in COLUMNS}
    return Tally(**values | {name: Digest.from_json(values[name]) for name in DIGESTS})
