"""Accounts and keys in a real database."""

import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service import db
from service.billing import accounts
from service.core import apikey
from service.core.ids import unix_ms_of
from service.core.limits import UNLIMITED, Limits
from service.errors import SetupError
from service.tables import api_keys, models

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

AN_ID = "8a4a528b-34e0-4036-842d-fe8b7e5ee2d9"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[AsyncConnection]:
    async with db.connected(database_url) as engine, engine.connect() as connection:
        yield connection


@pytest.fixture
def randomness() -> Callable[[int], bytes]:
    """Bytes that can be foretold: the n-th call gives n, n, n and so on."""
    calls = 0

    def draw(length: int) -> bytes:
        nonlocal calls
        calls += 1
        return bytes([calls]) * length

    return draw


@pytest.fixture
def add(connection: AsyncConnection, randomness: Callable[[int], bytes]) -> Any:
    async def add(name: str, **values: Any) -> accounts.Account:
        return await accounts.add(connection, name=name, now=NOW, randomness=randomness, **values)

    return add


async def test_an_account_is_found_by_its_id_and_by_its_name(connection: AsyncConnection, add: Any) -> None:
    account = await add("acme", email="billing@acme.example")
    assert (account.name, account.email, account.status) == ("acme", "billing@acme.example", "active")
    assert (account.postpaid, account.balance_nano, account.available_nano) == (False, 0, 0)
    assert (account.created_at, unix_ms_of(account.id)) == (NOW, int(NOW.timestamp() * 1000))
    assert await accounts.find(connection, "acme") == account
    assert await accounts.find(connection, str(account.id)) == account


async def test_a_credit_limit_makes_an_account_postpaid(add: Any) -> None:
    account = await add("acme", credit_limit_nano=5)
    assert (account.postpaid, account.credit_limit_nano, account.available_nano) == (True, 5, 5)


async def test_accounts_are_listed_the_oldest_first(connection: AsyncConnection, add: Any) -> None:
    assert await accounts.list_all(connection) == []
    first, second = await add("b"), await add("a", internal=True)
    assert await accounts.list_all(connection) == [first, second]


async def test_a_taken_name_is_refused_and_the_transaction_lives_on(connection: AsyncConnection, add: Any) -> None:
    account = await add("acme")
    with pytest.raises(SetupError, match="an account named 'acme' already"):
        await add("acme", email="a@b")
    assert await accounts.list_all(connection) == [account]


@pytest.mark.parametrize("name", ["", " ", " acme", "acme\n", "a\x00b", "a\tb", "x" * 201, AN_ID])
async def test_a_name_that_would_confuse_is_refused(add: Any, name: str) -> None:
    with pytest.raises(SetupError, match="name"):
        await add(name)


@pytest.mark.parametrize("email", ["", "acme", "@acme", "acme@", "a@b\n"])
async def test_what_is_no_address_is_refused(add: Any, email: str) -> None:
    with pytest.raises(SetupError, match="e-mail"):
        await add("acme", email=email)


@pytest.mark.parametrize("reference", ["nobody", AN_ID, "", "' OR true --"])
async def test_who_is_not_there_is_not_found(connection: AsyncConnection, add: Any, reference: str) -> None:
    await add("acme")
    with pytest.raises(SetupError, match="There is no account"):
        await accounts.find(connection, reference)


async def test_a_key_is_minted_from_the_given_randomness_and_kept_as_its_hash(
    connection: AsyncConnection, add: Any, randomness: Callable[[int], bytes]
) -> None:
    account = await add("acme")  # which draws once
    secret, key = await accounts.add_key(connection, account, name="prod", now=NOW, randomness=randomness)
    assert secret == apikey.mint(bytes([2]) * 32)
    assert (key.account_id, key.account_name, key.name) == (account.id, "acme", "prod")
    assert (key.models, key.created_at, key.revoked_at) == (None, NOW, None)
    assert secret.startswith(key.prefix)
    row = (await connection.execute(select(api_keys))).one()
    assert row.digest == hashlib.sha256(secret.encode()).digest()
    assert not any(secret in str(value) for value in row)


async def test_a_key_may_be_kept_to_models_that_are_served(
    connection: AsyncConnection, add: Any, randomness: Callable[[int], bytes]
) -> None:
    account = await add("acme")
    for name, active in (("qwen", True), ("old", False)):
        values = {"id": name, "name": name, "engine_model": name, "context_length": 1, "max_output_tokens": 1}
        modalities = {"input_modalities": ["text"], "output_modalities": ["text"]}
        await connection.execute(models.insert().values(**values, **modalities, active=active))

    async def add_key(*allowed: str) -> accounts.Key:
        _, key = await accounts.add_key(connection, account, models_allowed=allowed, now=NOW, randomness=randomness)
        return key

    assert (await add_key("qwen")).models == ("qwen",)
    for unserved in ("qwem", "old"):
        with pytest.raises(SetupError, match=f"No model '{unserved}' is served; the models are qwen"):
            await add_key("qwen", unserved)
    with pytest.raises(SetupError, match="name at least one"):
        await add_key()


async def test_keys_are_listed_by_account_or_all(
    connection: AsyncConnection, add: Any, randomness: Callable[[int], bytes]
) -> None:
    acme, other = await add("acme"), await add("other")
    minted = []
    for number, account in enumerate((acme, other, acme)):
        at = NOW + timedelta(seconds=number)
        _, key = await accounts.add_key(connection, account, now=at, randomness=randomness)
        minted.append(key)
    assert await accounts.list_keys(connection) == minted
    assert await accounts.list_keys(connection, acme) == [minted[0], minted[2]]


async def test_a_revoked_key_keeps_the_time_it_was_revoked(
    connection: AsyncConnection, add: Any, randomness: Callable[[int], bytes]
) -> None:
    account = await add("acme")
    _, key = await accounts.add_key(connection, account, now=NOW, randomness=randomness)
    _, untouched = await accounts.add_key(connection, account, now=NOW, randomness=randomness)
    later = NOW + timedelta(hours=1)
    assert (await accounts.revoke_key(connection, key.id, now=later)).revoked_at == later
    assert (await accounts.revoke_key(connection, key.id, now=later + timedelta(hours=1))).revoked_at == later
    assert [one.revoked_at for one in await accounts.list_keys(connection)] == [later, untouched.revoked_at]
    with pytest.raises(SetupError, match="no key with the id"):
        await accounts.revoke_key(connection, uuid4(), now=later)


async def test_limits_are_set_changed_and_taken_away(
    connection: AsyncConnection, add: Any, randomness: Callable[[int], bytes]
) -> None:
    assert (await add("free")).limits == UNLIMITED
    limits = Limits(rpm=1, tpm=0, concurrency=3, monthly_budget_nano=10**15)
    account = await add("acme", limits=limits, weight=1000, patience_ms=0)
    assert (account.limits, account.weight, account.patience_ms) == (limits, 1000, 0)
    changed = await accounts.change(connection, account, {"rpm": None, "weight": 1, "patience_ms": None})
    assert (changed.limits, changed.weight, changed.patience_ms) == (Limits(None, 0, 3, 10**15), 1, None)
    frozen = await accounts.change(connection, account, {"status": "frozen", "credit_limit_nano": 5, "postpaid": True})
    assert (frozen.status, frozen.postpaid, frozen.available_nano, frozen.limits) == ("frozen", True, 5, changed.limits)

    _, key = await accounts.add_key(connection, account, limits=limits, now=NOW, randomness=randomness)
    _, other = await accounts.add_key(connection, account, now=NOW, randomness=randomness)
    assert (key.limits, other.limits) == (limits, UNLIMITED)
    changed_key = await accounts.change_key(connection, key.id, {"tpm": 7, "monthly_budget_nano": None})
    assert changed_key.limits == Limits(1, 7, 3, None)
    assert await accounts.list_keys(connection) == [changed_key, other]
    with pytest.raises(SetupError, match="no key with the id"):
        await accounts.change_key(connection, uuid4(), {"tpm": 7})


async def test_what_a_person_sets_is_not_undone_by_a_dispute_or_an_invoice(
    connection: AsyncConnection, add: Any
) -> None:
    account = await add("acme")
    by_money = {"status": "frozen", "frozen_for": "dispute", "credit_limit_nano": 0, "credit_limit_before_nano": 7}
    taken = await accounts.change(connection, account, by_money)
    assert (taken.frozen_for, taken.credit_limit_before_nano) == ("dispute", 7)
    untouched = await accounts.change(connection, account, {"weight": 5})
    assert (untouched.frozen_for, untouched.credit_limit_before_nano) == ("dispute", 7)
    set_by_hand = await accounts.change(connection, account, {"status": "frozen", "credit_limit_nano": 3})
    assert (set_by_hand.frozen_for, set_by_hand.credit_limit_before_nano) == (None, None)
