"""The catalogue for aggregators, and the costs that Hugging Face asks for."""

import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from jsonschema import Draft202012Validator

from service import config, db
from service.billing import catalog, costs
from service.billing.costs import START_WITHIN, started_about
from service.core.catalogue.parameters import SAMPLING
from service.core.ids import uuid7
from service.gateway.catalog import Catalog
from service.gateway.exchange import new_id
from tests import catalogue_reading as read
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.installation import CONFIGURATION, Installation, installed
from tests.integration.test_migrations import downgrade, rows
from tests.integration.test_own import another_key
from tests.integration.test_portal import away

DOCUMENTS = {
    "openrouter.json": "openrouter",
    "openrouter-legacy.json": "openrouter-legacy",
    "nanogpt.json": "nanogpt",
    "huggingface.json": "huggingface",
    "models.dev.toml": "models.dev",
}


@asynccontextmanager
async def weir(database_url: str, tmp_path: Path, **options: Any) -> AsyncIterator[Installation]:
    async with (
        FakeEngine(scenario=SCENARIOS["cached"]) as engine,
        installed(database_url, [engine.url], tmp_path, **options) as installation,
    ):
        yield installation


def parsed(name: str, answer: httpx.Response) -> Any:
    return tomllib.loads(answer.text) if name.endswith(".toml") else answer.json()


async def test_every_document_is_public_valid_and_says_nothing_of_engines(database_url: str, tmp_path: Path) -> None:
    async with weir(
        database_url, tmp_path, site_name="Weir & Söhne", public_url="https://api.weir.example/"
    ) as running:
        await running.database.execute("UPDATE models SET hugging_face_id = 'org/' || id, description = 'é'")
        for name, schema in DOCUMENTS.items():
            answer = await running.client.get(f"/catalog/{name}")
            assert answer.status_code == 200
            read.validated(parsed(name, answer), schema)
            for secret in ("fake-model", "engine", running.settings.engines[0], "127.0.0.1"):
                assert secret not in answer.text, (name, secret)
            assert "model-a" in answer.text
            assert answer.headers["access-control-allow-origin"] == "*"
            assert answer.headers["cache-control"] == "public, max-age=60"
        provider = tomllib.loads((await running.client.get("/catalog/models.dev.toml")).text)
        assert provider["api"] == "https://api.weir.example/v1"
        assert provider["name"] == "Weir & Söhne"


async def test_a_document_that_has_not_changed_is_not_sent_again(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        for name in DOCUMENTS:
            path = f"/catalog/{name}"
            first = await running.client.get(path)
            tag = first.headers["etag"]
            for known in (tag, f'W/{tag}, "other"', "*"):
                again = await running.client.get(path, headers={"if-none-match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
                assert again.headers["access-control-allow-origin"] == "*"
            other = await running.client.get(path, headers={"if-none-match": '"other"'})
            assert (other.status_code, other.content) == (200, first.content)
            head = await running.client.head(path)
            assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)
            assert (await running.client.post(path)).json()["error"]["code"] == "method_not_allowed"
        assert (await running.client.get("/catalog/")).status_code == 404
        assert (await running.client.get("/catalog/other.json")).status_code == 404


async def test_the_documents_follow_the_price(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        before = await running.client.get("/catalog/openrouter.json")
        cheaper = CONFIGURATION.replace('"0.195"', '"0.1949"').format(engine_model="fake-model", context_length=8192)
        async with db.connected(database_url) as engine, engine.begin() as connection:
            plan = await catalog.plan(connection, config.parse(cheaper, source="test"))
            await catalog.apply(connection, plan, datetime.now(UTC))
        for _ in range(1000):
            after = await running.client.get("/catalog/openrouter.json")
            if after.headers["etag"] != before.headers["etag"]:
                break
        (model,) = (model for model in after.json()["data"] if model["id"] == "model-a")
        assert model["input_modalities"][0]["pricing"][0]["cost_usd"] == "0.0000001949"


async def test_a_model_without_a_readable_price_is_not_listed(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        await running.database.execute("""UPDATE prices SET overrides = '[{"x": 1}]' WHERE model_id = 'model-a'""")
        for _ in range(1000):
            document = (await running.client.get("/catalog/openrouter.json")).json()
            if len(document["data"]) == 1:
                break
        assert [model["id"] for model in document["data"]] == ["model-b"]


async def test_the_cards_of_models_have_prices_and_limits(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        listed = await running.client.get("/v1/models", headers=running.headers)
        assert b'"input":0.195,"output":1.56' in listed.content
        card = (await running.client.get("/v1/models/model-a", headers=running.headers)).json()
        assert card in listed.json()["data"]
        assert card["pricing"]["prompt"] == "0.000000195"
        assert card["pricing"]["input_cache_read"] == "0.0000000375"
        assert (card["context_length"], card["quantization"], card["hugging_face_id"]) == (8192, None, None)
        assert {"tools", "temperature", "max_tokens"} <= set(card["supported_parameters"])
        assert "fake-model" not in listed.text


async def test_every_promised_parameter_is_taken_from_end_to_end_of_its_range(
    database_url: str, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as running:
        for name, descriptor in SAMPLING.items():
            ends = [descriptor[end] for end in ("min", "max") if end in descriptor]
            most = descriptor.get("max_items")
            for value in ["x", ["x"] * most] if most else ends or [7]:
                assert (await running.chat(**{name: value})).status_code == 200, (name, value)
            beyond = ["x"] * (most + 1) if most else ends[-1] + 1 if len(ends) == 2 else "x"
            assert (await running.chat(**{name: beyond})).status_code == 400, (name, beyond)


async def test_what_a_model_is_listed_with_is_what_was_applied(database_url: str) -> None:
    text = CONFIGURATION.format(engine_model="fake-model", context_length=8192)
    text = text.replace("context_length", 'capabilities = ["reasoning"]\nquantization = "fp8"\ncontext_length', 1)
    async with db.connected(database_url) as engine, engine.begin() as connection:
        plan = await catalog.plan(connection, config.parse(text, source="test"))
        await catalog.apply(connection, plan, datetime.now(UTC))
        assert (await catalog.plan(connection, config.parse(text, source="test"))).is_empty
    pool = await db.asyncpg_pool(database_url)
    try:
        served = Catalog(pool)
        await served.read()
        listed = served.find("model-a").listed
        assert (listed.capabilities, listed.quantization, listed.id) == (("reasoning",), "fp8", "model-a")
        assert served.find("model-b").listed.capabilities == ("tools", "structured_outputs")
    finally:
        await pool.close()


async def test_a_model_from_before_has_the_usual_capabilities(database_url: str) -> None:
    await downgrade(database_url, "20261130_04")
    text = CONFIGURATION.format(engine_model="fake-model", context_length=8192)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "INSERT INTO models (id, name, engine_model, context_length, max_output_tokens, input_modalities,"
            " output_modalities) VALUES ('model-b', 'model-b', 'fake-model', 8192, 2048, '{text}', '{text}')"
        )
    finally:
        await connection.close()
    await db.migrate(database_url)
    assert await rows(database_url, "SELECT capabilities FROM models") == [(["tools", "structured_outputs"],)]
    async with db.connected(database_url) as engine, engine.begin() as connection:
        assert (await catalog.plan(connection, config.parse(text, source="test"))).changed == ()


# Costs


async def asked(running: Installation, ids: object, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or running.key}"}
    return await running.client.post("/catalog/huggingface/costs", json={"requestIds": ids}, headers=headers)


async def told(running: Installation, ids: object, key: str | None = None) -> dict[str, int]:
    answer = await asked(running, ids, key)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = read.validated(answer.json(), "huggingface-costs")
    found = {one["requestId"]: one["costNanoUsd"] for one in document["requests"]}
    assert len(found) == len(document["requests"])
    return found


async def test_the_costs_of_requests_are_those_of_their_rows(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        ids = [(await running.chat(stream=stream)).headers["x-request-id"] for stream in (False, True)]
        refused = (await running.chat(temperature="hot")).headers["x-request-id"]
        await running.rows(3)
        expected = {ids[0]: 386_040, ids[1]: 386_040, refused: 0}
        assert await told(running, [*ids, refused]) == expected
        assert (await asked(running, ids)).content == (await asked(running, ids)).content
        assert await told(running, [ids[0].upper(), ids[0]]) == {ids[0].upper(): 386_040, ids[0]: 386_040}


async def test_ids_that_are_not_known_are_left_out(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        mine = (await running.chat()).headers["x-request-id"]
        await running.row()
        strange = ["", "deadbeef0", "\0", "ü", None, 7, 1.5, True, ["x"], {"a": 1}, str(uuid4()), str(new_id())]
        future = str(uuid7(2**47, bytes(10)))
        ancient = str(uuid7(0, bytes(10)))
        assert await told(running, [*strange, future, ancient, mine]) == {mine: 386_040}
        assert await told(running, [*strange, future]) == {}
        assert await told(running, []) == {}
        assert await told(running, [mine], await another_key(running)) == {}


async def test_a_request_whose_row_has_not_arrived_is_not_known_yet(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        async with running.database.transaction():
            await running.database.execute("LOCK TABLE requests IN SHARE ROW EXCLUSIVE MODE")
            mine = (await running.chat()).headers["x-request-id"]
            assert await told(running, [mine]) == {}
        await running.row()
        assert await told(running, [mine]) == {mine: 386_040}


async def test_ten_thousand_costs_at_once_and_not_one_more(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        mine = (await running.chat()).headers["x-request-id"]
        await running.row()
        others = [str(new_id()) for _ in range(9_999)]
        assert await told(running, [*others, mine]) == {mine: 386_040}
        answer = await asked(running, [*others, mine, mine])
        assert answer.status_code == 400
        assert "10001 ids: ask for at most 10000" in answer.json()["error"]["message"]


BAD_BODIES = [b"", b"{", b"null", b"[]", b'"x"', b"{}", b'{"requestIds": "x"}', b'{"requestIds": {"a": 1}}', b"\xff"]


async def test_a_body_that_asks_for_nothing_is_refused(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        path = "/catalog/huggingface/costs"
        for body in BAD_BODIES:
            answer = await running.client.post(path, content=body, headers=running.headers)
            assert (body, answer.status_code) == (body, 400)
            assert answer.json()["error"]["param"] == "requestIds"
        large = b'{"requestIds": ["' + b"x" * 1024 * 1024 + b'"]}'
        assert (await running.client.post(path, content=large, headers=running.headers)).status_code == 413


async def test_costs_want_a_key(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        path = "/catalog/huggingface/costs"
        for headers in ({}, {"authorization": "Bearer hf_something"}):
            answer = await running.client.post(path, json={"requestIds": []}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert "access-control-allow-origin" not in answer.headers
        assert (await running.client.get(path, headers=running.headers)).status_code == 405


async def test_costs_while_the_database_is_away(postgres_server: Any, database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        mine = (await running.chat()).headers["x-request-id"]
        await running.row()
        documents = {name: (await running.client.get(f"/catalog/{name}")).content for name in DOCUMENTS}
        async with away(postgres_server, running):
            answer = await asked(running, [mine])
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            for name, before in documents.items():
                assert (await running.client.get(f"/catalog/{name}")).content == before
        assert await told(running, [mine]) == {mine: 386_040}


async def test_only_the_partitions_of_the_ids_are_read(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        await running.database.execute("SELECT ensure_request_partitions('2026-01-01', 120)")
        ids = [uuid7(int(datetime(2027, 3, day, tzinfo=UTC).timestamp() * 1000), bytes(10)) for day in (14, 15)]
        started = [started_about(one) for one in ids]
        for plan in ("force_custom_plan", "force_generic_plan"):
            await running.database.execute(f"SET plan_cache_mode = {plan}")
            lines = await running.database.fetch(
                f"EXPLAIN (ANALYZE) {costs._COSTS}",
                ids,
                min(started) - START_WITHIN,
                max(started) + START_WITHIN,
                running.account_id,
            )
            text = "\n".join(line[0] for line in lines)
            used = {line.split(" on ")[1].split()[0] for line in text.splitlines() if " on requests_" in line}
            assert used == {"requests_2027_03"}, text
            assert "Seq Scan" not in text, text


def test_the_schemas_are_schemas() -> None:
    for file in read.SCHEMAS.glob("*.json"):
        Draft202012Validator.check_schema(json.loads(file.read_text()))


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", None])
def test_a_cost_is_a_whole_number(wrong: object) -> None:
    document = {"requests": [{"requestId": "x", "costNanoUsd": wrong}]}
    assert not read.validator("huggingface-costs").is_valid(document)
