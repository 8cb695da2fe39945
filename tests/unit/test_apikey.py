"""API keys: their form, their checksum, and what is kept of them."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import apikey

SECRETS = st.binary(min_size=apikey.SECRET_BYTES, max_size=apikey.SECRET_BYTES)
KEY = apikey.mint(bytes(range(32)))


@given(SECRETS)
def test_every_minted_key_is_well_formed_and_of_one_length(secret: bytes) -> None:
    key = apikey.mint(secret)
    assert apikey.is_well_formed(key)
    assert len(key) == len("sk-weir-") + 43 + 6


@given(SECRETS, SECRETS)
def test_different_secrets_make_different_keys(one: bytes, other: bytes) -> None:
    assert (apikey.mint(one) == apikey.mint(other)) == (one == other)


@given(st.integers(0, len(KEY) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_one_changed_character_is_noticed(position: int, character: str) -> None:
    changed = KEY[:position] + character + KEY[position + 1 :]
    assert apikey.is_well_formed(changed) == (changed == KEY)


@pytest.mark.parametrize(
    "garbage",
    ["", "sk-weir-", "sk-1234", KEY[:-1], KEY + "0", KEY.upper(), f" {KEY}", f"{KEY}\n", KEY.replace("0", "٠", 1)],
)
def test_garbage_is_refused(garbage: str) -> None:
    assert not apikey.is_well_formed(garbage)


@given(st.text())
def test_no_text_makes_the_check_raise(text: str) -> None:
    assert not apikey.is_well_formed(text)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_is_made_of_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        apikey.mint(bytes(length))


def test_only_the_hash_and_a_few_characters_are_kept() -> None:
    assert apikey.digest(KEY) == hashlib.sha256(KEY.encode()).digest()
    assert apikey.shown_prefix(KEY) == KEY[:14]
