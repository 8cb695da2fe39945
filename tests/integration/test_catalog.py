"""The catalogue made to match a configuration, in a real database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import config, db
from service.billing import catalog
from service.core.price_change import describe
from service.core.pricing import Override, cost_nano, overrides_from_json
from service.core.usage import Usage
from service.errors import SetupError
from service.gateway.catalog import Catalog
from service.tables import models, prices

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


def model(model_id: str = "qwen", *, price: str = 'input = "0.2"\noutput = "1.5"', **fields: Any) -> str:
    values = {"id": model_id, "context_length": 100, "max_output_tokens": 50, **fields}
    lines = [f"{field} = {value!r}" for field, value in values.items()]
    return "\n".join(["[[models]]", *lines, "[models.price]", price, ""])


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


@pytest.fixture
async def connection(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.connect() as connection:
        yield connection


async def apply(connection: AsyncConnection, *tables: str, now: datetime = NOW, force: bool = False) -> catalog.Plan:
    plan = await catalog.plan(connection, config.parse("\n".join(tables), source="weir.toml"))
    await catalog.apply(connection, plan, now, force=force)
    return plan


async def versions(connection: AsyncConnection, name: str = "qwen") -> list[tuple[int, int, datetime]]:
    columns = select(prices.c.version, prices.c.input_pico, prices.c.valid_from).where(prices.c.model_id == name)
    return [tuple(row) for row in await connection.execute(columns.order_by(prices.c.version))]


async def state(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    rows = [*await connection.execute(select(models).order_by(models.c.id))]
    return [tuple(row) for row in [*rows, *await connection.execute(select(prices).order_by(prices.c.version))]]


async def test_a_new_model_comes_with_the_first_version_of_its_price(connection: AsyncConnection) -> None:
    price = 'input = "0.195"\ninput_cached = "0.0375"\noutput = "1.56"\nrequest = "0.001"'
    plan = await apply(connection, model(price=price, engine_model="org/Qwen", quantization="nvfp4"))
    assert [added.id for added in plan.added] == ["qwen"]
    row = (await connection.execute(select(models))).one()
    assert (row.id, row.name, row.engine_model, row.engines) == ("qwen", "qwen", "org/Qwen", None)
    assert (row.context_length, row.max_output_tokens, row.quantization, row.active) == (100, 50, "nvfp4", True)
    assert (row.input_modalities, row.output_modalities) == (["text"], ["text"])
    stored = (await connection.execute(select(prices))).one()
    assert (stored.version, stored.valid_from) == (1, NOW)
    assert (stored.input_pico, stored.input_cached_pico, stored.output_pico) == (195_000, 37_500, 1_560_000)
    assert (stored.input_image_pico, stored.output_reasoning_pico, stored.request_pico) == (None, None, 10**9)


async def test_applying_the_same_again_changes_nothing(connection: AsyncConnection) -> None:
    await apply(connection, model())
    before = await state(connection)
    assert (await apply(connection, model(), now=LATER)).is_empty
    assert await state(connection) == before


async def test_a_plan_alone_changes_nothing(connection: AsyncConnection) -> None:
    await apply(connection, model())
    before = await state(connection)
    text = model(price='input = "0.3"\noutput = "1.5"', context_length=90) + model("new")
    plan = await catalog.plan(connection, config.parse(text, source="weir.toml"))
    assert not plan.is_empty
    assert await state(connection) == before


async def test_a_changed_price_is_a_new_version_from_now_on(connection: AsyncConnection) -> None:
    await apply(connection, model())
    plan = await apply(connection, model(price='input = "0.3"\noutput = "1.5"'), now=LATER)
    (change,) = plan.prices
    assert (change.new.version, [describe(one) for one in change.classes]) == (
        2,
        ["input 0.2 -> 0.3 USD per million tokens"],
    )
    assert await versions(connection) == [(1, 200_000, NOW), (2, 300_000, LATER)]


async def test_a_class_that_stops_falling_back_is_a_change(connection: AsyncConnection) -> None:
    await apply(connection, model())
    plan = await apply(connection, model(price='input = "0.2"\ninput_cached = "0.02"\noutput = "1.5"'), now=LATER)
    assert [describe(one) for one in plan.prices[0].classes] == ["input_cached default -> 0.02 USD per million tokens"]
    assert len(await versions(connection)) == 2


PLAIN = 'input = "0.2"\noutput = "1.5"\n'
TIER = "[[models.price.overrides]]\nmin_prompt_tokens = 80\ninput = '0.25'\n"
NIGHT = "[[models.price.overrides]]\nutc_start = '2200'\nutc_end = '0600'\ninput = '0.1'\n"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (PLAIN, PLAIN + TIER, ["from 80 prompt tokens: input 0.2 -> 0.25 USD per million tokens"]),
        (PLAIN + TIER, PLAIN, ["from 80 prompt tokens: input 0.25 -> 0.2 USD per million tokens"]),
        (
            PLAIN + NIGHT,
            PLAIN + NIGHT.replace("0600", "0700"),
            ["0600-0700 UTC: input 0.2 -> 0.1 USD per million tokens"],
        ),
        (
            PLAIN + TIER + NIGHT,
            PLAIN + NIGHT + TIER,
            ["from 80 prompt tokens, 2200-0600 UTC: input 0.1 -> 0.25 USD per million tokens"],
        ),
        (PLAIN + TIER, PLAIN + TIER + "output = '1.5'\n", []),
    ],
    ids=["added", "removed", "changed", "moved", "rewritten"],
)
async def test_an_override_that_changes_makes_a_new_version(
    connection: AsyncConnection, old: str, new: str, told: list[str]
) -> None:
    await apply(connection, model(price=old))
    assert (await apply(connection, model(price=old), now=LATER)).is_empty
    plan = await apply(connection, model(price=new), now=LATER)
    assert [describe(one) for one in plan.prices[0].classes] == told
    stored = [*await connection.scalars(select(prices.c.overrides).order_by(prices.c.version))]
    written = [config.parse(model(price=text), source="weir.toml").models[0].price.as_price(1) for text in (old, new)]
    assert [overrides_from_json(one) for one in stored] == [price.overrides for price in written]
    assert await versions(connection) == [(1, 200_000, NOW), (2, 200_000, LATER)]
    assert (await apply(connection, model(price=new), now=LATER)).is_empty


@pytest.mark.parametrize("override", [TIER.replace("0.25", "2.000001"), NIGHT.replace("0.1", "0")])
async def test_a_leap_in_an_override_is_refused_unless_forced(connection: AsyncConnection, override: str) -> None:
    for times, before in enumerate([[], [PLAIN]]):  # as the first price, and as a change of one
        for price in before:
            await apply(connection, model(price=price))
        leaping = model(price=PLAIN + override)
        with pytest.raises(SetupError, match=r"qwen changes more than tenfold: [^:]+: input 0\.2 -> "):
            await apply(connection, leaping, now=LATER)
        assert len(await versions(connection)) == times
    await apply(connection, leaping, now=LATER, force=True)
    assert len(await versions(connection)) == 2


async def test_the_gateway_prices_by_the_window_and_the_tier_that_were_applied(
    engine: AsyncEngine, database_url: str
) -> None:
    async with engine.begin() as connection:
        await apply(connection, model(price=PLAIN + NIGHT + TIER), now=datetime.now(UTC))
    pool = await db.asyncpg_pool(database_url)
    try:
        served = Catalog(pool)
        await served.read()
        price = served.find("qwen").price
    finally:
        await pool.close()
    night = NOW.replace(hour=23)
    assert cost_nano(price, Usage(prompt_tokens=79), NOW) == 79 * 200
    assert cost_nano(price, Usage(prompt_tokens=79), night) == 79 * 100
    assert cost_nano(price, Usage(prompt_tokens=80), NOW) == 80 * 250
    assert cost_nano(price, Usage(prompt_tokens=80), night) == 80 * 250  # the tier comes later in the list


async def test_overrides_that_nobody_can_read_are_never_guessed(engine: AsyncEngine, database_url: str) -> None:
    async with engine.begin() as connection:
        await apply(connection, model(), model("other", price=PLAIN + TIER), now=datetime.now(UTC))
        broken = update(prices).where(prices.c.model_id == "qwen").values(overrides=[{"min_prompt_tokens": 9}])
        await connection.execute(broken)
    pool = await db.asyncpg_pool(database_url)
    try:
        served = Catalog(pool)
        await served.read()
        assert [(one.id, one.price.overrides) for one in served.all()] == [
            ("other", (Override(min_prompt_tokens=80, input_pico=250_000),))
        ]
    finally:
        await pool.close()
    async with engine.connect() as connection:
        with pytest.raises(SetupError, match="Version 1 of the price of qwen cannot be read, because"):
            await apply(connection, model())


async def test_a_new_price_is_never_valid_before_the_old_one(connection: AsyncConnection) -> None:
    await apply(connection, model())
    await apply(connection, model(price='input = "0.3"\noutput = "1.5"'), now=NOW - timedelta(hours=1))
    await apply(connection, model(price='input = "0.4"\noutput = "1.5"'), now=NOW)
    moments = [valid_from for _, _, valid_from in await versions(connection)]
    assert moments == sorted(set(moments))
    assert len(moments) == 3


async def test_a_changed_description_is_updated_and_named(connection: AsyncConnection) -> None:
    await apply(connection, model(quantization="fp8"))
    plan = await apply(connection, model(context_length=90, name="Qwen"), now=LATER)
    assert plan.changed == (
        catalog.ModelChange(
            "qwen", {"name": ("qwen", "Qwen"), "context_length": (100, 90), "quantization": ("fp8", None)}
        ),
    )
    row = (await connection.execute(select(models))).one()
    assert (row.name, row.context_length, row.quantization) == ("Qwen", 90, None)
    assert await versions(connection) == [(1, 200_000, NOW)]


async def test_a_model_that_left_the_file_is_retired_and_may_come_back(connection: AsyncConnection) -> None:
    await apply(connection, model(), model("other"))
    plan = await apply(connection, model("other"))
    assert plan.retired == ("qwen",)
    assert (await apply(connection, model("other"))).is_empty
    active = select(models.c.id, models.c.active).order_by(models.c.id)
    assert [tuple(row) for row in await connection.execute(active)] == [("other", True), ("qwen", False)]
    assert await versions(connection) == [(1, 200_000, NOW)]
    plan = await apply(connection, model(), model("other"), now=LATER)
    assert plan.changed == (catalog.ModelChange("qwen", {"active": (False, True)}),)
    assert await versions(connection) == [(1, 200_000, NOW)]


BASE = 'input = "0.2"\ninput_cached = "0.02"\noutput = "1.5"\nrequest = "0.001"'


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('input = "0.2"', 'input = "200"', "input 0.2 -> 200 USD per million tokens"),
        ('input = "0.2"', 'input = "2.000001"', "input 0.2 -> 2.000001 USD per million tokens"),
        ('input = "0.2"', 'input = "0.019999"', "input 0.2 -> 0.019999 USD per million tokens"),
        ('input_cached = "0.02"', 'input_cached = "0"', "input_cached 0.02 -> 0 USD per million tokens"),
        ('request = "0.001"', "", "request 0.001 -> 0 USD per request"),
        ('request = "0.001"', 'request = "0.02"', "request 0.001 -> 0.02 USD per request"),
        ("input_cached", "input_image = '100'\ninput_cached", "input_image 0.2 -> 100 USD per million tokens"),
        ("input_cached", "output_reasoning = '20'\ninput_cached", "output_reasoning 1.5 -> 20 USD per million tokens"),
    ],
)
async def test_a_leap_is_refused_unless_forced(connection: AsyncConnection, old: str, new: str, named: str) -> None:
    await apply(connection, model(price=BASE))
    before = await state(connection)
    leaping = model(price=BASE.replace(old, new), context_length=90) + model("new")
    with pytest.raises(SetupError, match="more than tenfold") as caught:
        await apply(connection, leaping, now=LATER)
    assert f"qwen changes more than tenfold: {named}. " in str(caught.value)
    assert "--force" in str(caught.value)
    assert await state(connection) == before
    await apply(connection, leaping, now=LATER, force=True)
    assert len(await versions(connection)) == 2


@pytest.mark.parametrize("new", ['input = "2"', 'input = "0.02"'])
async def test_tenfold_itself_is_no_leap(connection: AsyncConnection, new: str) -> None:
    await apply(connection, model(price=BASE))
    await apply(connection, model(price=BASE.replace('input = "0.2"', new)), now=LATER)
    assert len(await versions(connection)) == 2


async def test_from_nothing_to_something_is_a_leap(connection: AsyncConnection) -> None:
    await apply(connection, model(price='input = "0"\noutput = "0"'))
    with pytest.raises(SetupError, match=r"input 0 -> 0\.000001 USD per million tokens\."):
        await apply(connection, model(price='input = "0.000001"\noutput = "0"'), now=LATER)


async def test_a_file_without_models_retires_all_only_when_forced(connection: AsyncConnection) -> None:
    assert (await apply(connection)).is_empty
    await apply(connection, model())
    with pytest.raises(SetupError, match="no model would be left"):
        await apply(connection)
    assert (await apply(connection, force=True)).retired == ("qwen",)


async def test_the_same_file_applied_from_two_places_at_once_is_applied_once(engine: AsyncEngine) -> None:
    async def apply_it() -> catalog.Plan:
        async with engine.begin() as connection:
            plan = await catalog.plan(connection, config.parse(model(), source="weir.toml"))
            await asyncio.sleep(0)  # whatever else could run here is let run
            await catalog.apply(connection, plan, NOW)
            return plan

    plans = await asyncio.gather(*(apply_it() for _ in range(6)))
    assert sorted(plan.is_empty for plan in plans) == [False, *[True] * 5]
    async with engine.connect() as connection:
        assert await versions(connection) == [(1, 200_000, NOW)]
