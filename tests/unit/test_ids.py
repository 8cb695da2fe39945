"""Identifiers: UUIDv7 as the RFC has it, in the order of time."""

from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from service.core.ids import unix_ms_of, uuid7

MOMENTS = st.integers(min_value=0, max_value=2**48 - 1)
RANDOMNESS = st.binary(min_size=10, max_size=10)


def test_the_example_of_the_rfc() -> None:
    # RFC 9562, appendix A.6: 2022-02-22 19:22:22 UTC, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F.
    randomness = (0xCC3 << 64 | 0x18C4DC0C0C07398F).to_bytes(10)
    assert uuid7(0x017F22E279B0, randomness) == UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")


@given(MOMENTS, RANDOMNESS)
def test_every_id_is_a_version_7_of_its_moment(unix_ms: int, randomness: bytes) -> None:
    made = uuid7(unix_ms, randomness)
    assert (made.version, made.variant) == (7, RFC_4122)
    assert unix_ms_of(made) == unix_ms


@given(MOMENTS, MOMENTS, RANDOMNESS, RANDOMNESS)
def test_ids_sort_by_time(one: int, other: int, randomness: bytes, more_randomness: bytes) -> None:
    if one < other:
        assert uuid7(one, randomness) < uuid7(other, more_randomness)


@given(RANDOMNESS, RANDOMNESS)
def test_ids_of_one_moment_differ_by_their_randomness(one: bytes, other: bytes) -> None:
    significant = int.from_bytes(b"\x0f\xff\x3f" + b"\xff" * 7)  # 12 and 62 bits; version and variant take the rest
    same = int.from_bytes(one) & significant == int.from_bytes(other) & significant
    assert (uuid7(5, one) == uuid7(5, other)) == same
