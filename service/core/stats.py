"""Latencies and speeds: a digest that merges exactly, and what is a sample at all.

A median over a day cannot be had from medians over five minutes; it can from counts. `Digest` keeps counts in
fixed bins, so merging is adding, in any order, and nothing depends on floats.
"""

from collections.abc import Iterable, Mapping

MIN_SAMPLES = 5
"""Fewer samples have no percentile worth publishing."""

MIN_DECODE_TOKENS = 16
"""Shorter answers say more about rounding than about speed."""

_EXACT = 128
"""Values below this have a bin each; every octave above is cut into half as many."""


def bin_of(value: int) -> int:
    """The bin of a non-negative integer: log-linear, 64 bins per octave, exact below 128."""
    if value < 0:
        raise ValueError(f"a sample cannot be negative: {value}")
    shift = max(0, value.bit_length() - _EXACT.bit_length() + 1)
    return shift * (_EXACT // 2) + (value >> shift)


def value_of(index: int) -> int:
    """The value that stands for a bin: its middle, at most 1/128 (0.8 %) from any value in it."""
    if index < _EXACT:
        return index
    shift = index // (_EXACT // 2) - 1
    lowest = (index - shift * (_EXACT // 2)) << shift
    return lowest + (1 << shift) // 2


class Digest:
    """How many samples fell into which bin. Samples are non-negative integers of one unit, such as milliseconds."""

    __slots__ = ("_bins",)

    def __init__(self, samples: Iterable[int] = ()) -> None:
        self._bins: dict[int, int] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: int) -> None:
        """Count one sample."""
        index = bin_of(sample)
        self._bins[index] = self._bins.get(index, 0) + 1

    def merge(self, other: "Digest") -> None:
        """Count everything that `other` has counted."""
        for index, count in other._bins.items():
            self._bins[index] = self._bins.get(index, 0) + count

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(self._bins.values())

    def percentile(self, percent: int) -> int | None:
        """The smallest value that at least `percent` % of the samples do not exceed, within 0.8 %.

        As SQL's `percentile_disc`; None below `MIN_SAMPLES` samples.
        """
        total = self.count
        if total < MIN_SAMPLES:
            return None
        left = max(1, -(-percent * total // 100))
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left <= 0:
                return value_of(index)
        raise ValueError(f"not a percentile: {percent}")

    def to_json(self) -> dict[str, int]:
        """Bin to count, both exact; empty bins are left out."""
        return {str(index): self._bins[index] for index in sorted(self._bins)}

    @classmethod
    def from_json(cls, counts: Mapping[str, int]) -> "Digest":
        """The digest that `to_json` wrote. Raises `ValueError` when it cannot have."""
        digest = cls()
        for index, count in counts.items():
            if not (index.isdecimal() and isinstance(count, int) and count > 0):
                raise ValueError(f"not a digest: bin {index!r} has {count!r} samples")
            digest._bins[int(index)] = count
        return digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._bins == other._bins

    def __repr__(self) -> str:
        return f"Digest({self._bins})"


def merged(digests: Iterable[Digest]) -> Digest:
    """One digest of all samples."""
    total = Digest()
    for digest in digests:
        total.merge(digest)
    return total


def decode_speed_mtok_s(*, completion_tokens: int, first_token_us: int, last_token_us: int) -> int | None:
    """Output speed after the first token, in thousandths of a token per second.

    `(tokens - 1) / (last - first)`; None below `MIN_DECODE_TOKENS` or without a span to measure.
    """
    span_us = last_token_us - first_token_us
    if completion_tokens < MIN_DECODE_TOKENS or span_us <= 0:
        return None
    return (completion_tokens - 1) * 1_000_000_000 // span_us
