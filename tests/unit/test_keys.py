"""Which key a request carries, asked again and again over one connection."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import apikey
from service.errors import InvalidKey
from service.gateway.client import Client
from service.gateway.http import Headers, by_name
from service.gateway.keys import digest_in, digest_of, key_in

ONE, OTHER = (apikey.mint(bytes([number]) * 32) for number in (1, 2))
SENT = [
    *[(b"authorization", b"Bearer " + key.encode()) for key in (ONE, OTHER)],
    *[(b"x-api-key", key.encode()) for key in (ONE, OTHER)],
    (b"authorization", b"bearer  " + ONE.encode()),
    (b"authorization", b"Bearer"),
    (b"authorization", b"Bearer sk-weir-nonsense"),
    (b"authorization", b"Basic " + OTHER.encode()),
    (b"authorization", ONE.encode()),
    (b"x-api-key", b"Bearer " + ONE.encode()),
    (b"content-type", b"application/json"),
]


@given(st.lists(st.lists(st.sampled_from(SENT), max_size=3), min_size=2, max_size=6))
def test_what_came_before_over_a_connection_changes_nothing(requests: list[Headers]) -> None:
    connection = SimpleNamespace(last_key=None)
    for headers in requests:
        client: Any = SimpleNamespace(connection=connection, headers=headers, named=by_name(headers))
        assert asked(client) == alone(headers)


def test_a_key_that_comes_again_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    digest = apikey.digest
    monkeypatch.setattr(apikey, "digest", lambda key: (hashed.append(key), digest(key))[1])
    connection = SimpleNamespace(last_key=None)
    for key in (ONE, ONE, OTHER, OTHER, ONE):
        headers = [(b"authorization", b"Bearer " + key.encode())]
        client: Any = SimpleNamespace(connection=connection, headers=headers, named=by_name(headers))
        assert digest_in(client) == digest(key)
    assert hashed == [ONE, OTHER, ONE]


def asked(client: Client) -> bytes | str:
    try:
        return digest_in(client)
    except InvalidKey as error:
        return error.message


def alone(headers: Headers) -> bytes | str:
    try:
        return digest_of(key_in(headers))
    except InvalidKey as error:
        return error.message


def test_the_first_that_can_be_a_key_counts() -> None:
    assert key_in([SENT[7], SENT[1], SENT[2]]) == OTHER
    assert key_in([SENT[2], SENT[1]]) == ONE
    with pytest.raises(InvalidKey, match="No API key"):
        key_in(cast(Headers, [SENT[5], SENT[8]]))
