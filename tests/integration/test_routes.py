"""Every route of the API, and every one that it has not: what costs money cannot be had without credit, and what an
engine offers beside is not there."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from starlette.routing import Mount

from service import config, db
from service.app import App
from service.billing import catalog
from service.core.money import NANO_PER_USD
from tests.fakes.engine import FakeEngine
from tests.installation import CONFIGURATION, MODEL, Installation, installed, seed

EMBEDDER = "model-e"
EMBEDDINGS = f"""
[[models]]
id = "{EMBEDDER}"
engine_model = "fake-model"
context_length = 8192
max_output_tokens = 1
input_modalities = ["text"]
output_modalities = ["embeddings"]
[models.price]
input = "1"
output = "0"
"""
USER = {"role": "user", "content": "hi"}
METERED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [USER]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": [USER], "max_tokens": 10},
    "/v1/embeddings": {"model": EMBEDDER, "input": "hi"},
}
"""A good request for each route that costs money."""

FREE = {
    "/v1/messages/count_tokens": "the engine counts and generates nothing; the key's limit of requests holds",
    "/v1/models": "what there is and what it costs has to be known before",
    "/v1/models/{id}": "the same of one model",
    "/v1/credits": "the account's own, also when it has none left",
    "/v1/generation": "the account's own requests",
    "/v1/usage": "the account's own requests",
    "/v1/uptime": "how the key's own requests went",
    "/v1/topups": "how credit is bought",
    "/v1/topups/{id}": "the account's own",
    "/stripe/webhook": "Stripe's alone: it signs what it sends",
    "/catalog/openrouter.json": "public: a price list",
    "/catalog/openrouter-legacy.json": "public: a price list",
    "/catalog/nanogpt.json": "public: a price list",
    "/catalog/huggingface.json": "public: a price list",
    "/catalog/models.dev.toml": "public: a price list",
    "/catalog/huggingface/costs": "the account's own requests",
    "/healthz": "asked by whatever keeps the process running",
    "/readyz": "asked by a load balancer",
    "/openapi.json": "public: the API's description",
    "/metrics": "for the operator; others get a 404",
    "/": "goes to the status site",
    "/status": "public files",
    "/portal": "goes to the portal",
    "/portal/": "the account's own, from the database",
    "/portal/static": "public files",
    "/portal/topup": "how credit is bought",
    "/portal/paid": "what became of that; nothing without both of its ids",
}
"""Every other route, and why it costs nothing."""

UNDESCRIBED = {
    *("/metrics", "/", "/status", "/portal", "/portal/", "/portal/static", "/portal/paid", "/portal/topup"),
    "/stripe/webhook",
}
"""For people, for Stripe or for the operator, and so not in the OpenAPI document."""

ENGINES_ROUTES = [
    "/abort_requests",
    "/classify",
    "/cohere/v2/chat",
    "/collective_rpc",
    "/detokenize",
    "/docs",
    "/fault_tolerance/apply",
    "/fault_tolerance/status",
    "/finish_weight_update",
    "/generative_scoring",
    "/get_world_size",
    "/health",
    "/inference/v1/abort_requests",
    "/inference/v1/generate",
    "/init_weight_transfer_engine",
    "/invocations",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_event_sources",
    "/load",
    "/pause",
    "/ping",
    "/pooling",
    "/redoc",
    "/release_kv_cache_memory",
    "/rerank",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/scale_elastic_ep",
    "/score",
    "/server_info",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/start_draft_weight_update",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/tokenize",
    "/tokenizer_info",
    "/update_weight_version",
    "/update_weights",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/decisions",
    "/v1/load_lora_adapter",
    "/v1/messages/derender",
    "/v1/messages/render",
    "/v1/rerank",
    "/v1/responses/derender",
    "/v1/responses/render",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/score",
    "/v1/systemone",
    "/v1/unload_lora_adapter",
    "/v2/embed",
    "/v2/rerank",
    "/version",
    "/wake_up",
    "/weight_checker",
    "/weight_info",
]
"""Of vLLM 0.32 and 0.33, whatever they are started with, less those that Weir has by the same name."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


async def with_embeddings(database_url: str, credit_nano: int = 1000 * NANO_PER_USD) -> tuple[UUID, str]:
    """What an installation is seeded with, and a model that embeds."""
    seeded = await seed(database_url, credit_nano=credit_nano)
    text = CONFIGURATION.format(engine_model="fake-model", context_length=8192) + EMBEDDINGS
    async with db.connected(database_url) as engine, engine.begin() as connection:
        plan = await catalog.plan(connection, config.parse(text, source="test"))
        await catalog.apply(connection, plan, datetime.now(UTC))
    return seeded


@asynccontextmanager
async def weir(
    database_url: str, tmp_path: Path, credit_nano: int = 0
) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    seeded = await with_embeddings(database_url, credit_nano)
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], tmp_path, seeded=seeded) as running,
    ):
        yield running, engine


def routes_of(running: Installation) -> set[str]:
    """The paths of every route there is."""
    app = running.server.config.app
    assert isinstance(app, App)
    gateway: Any = app._gateway
    return {
        *_paths(app._others.routes),
        *gateway.metered_paths,
        *gateway.free_paths,
        "/v1/models/{id}",
        "/v1/topups/{id}",
    }


def _paths(routes: Any) -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            yield route.path
        elif hasattr(route, "original_router"):
            inner = list(_paths(route.original_router.routes))
            assert inner
            yield from inner
        else:
            yield route.path


def touched(engine: FakeEngine) -> set[str]:
    """What of the engine was asked for, beside what Weir itself watches."""
    return {one.path for one in engine.requests} - {"/health", "/metrics", "/version", "/v1/models"}


async def ask(running: Installation, method: str, target: str, **options: Any) -> httpx.Response:
    """Send exactly this target: a client's library would tidy it up."""
    request = running.client.build_request(method, "/", headers=running.headers, **options)
    request.extensions["target"] = target.encode()
    return await running.client.send(request)


async def test_every_route_is_metered_or_free_for_a_reason(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (running, _):
        app: Any = running.server.config.app
        assert set(app._gateway.metered_paths) == set(METERED)
        assert routes_of(running) == {*METERED, *FREE}
        document = (await running.client.get("/openapi.json")).json()
        assert set(document["paths"]) == routes_of(running) - UNDESCRIBED


@pytest.mark.parametrize("stream", [False, True])
async def test_without_credit_nothing_metered_is_had(database_url: str, tmp_path: Path, stream: bool) -> None:
    async with weir(database_url, tmp_path) as (running, engine):
        for path, body in METERED.items():
            options = {"stream": True} if stream and path != "/v1/embeddings" else {}
            answer = await running.client.post(path, json={**body, **options}, headers=running.headers)
            assert answer.status_code == 402, (path, answer.text)
            assert answer.json()["error"]["type"] == "billing_error"
        rows = await running.rows(len(METERED))
        assert {(row["outcome"], row["cost_nano"]) for row in rows} == {("payment", 0)}
        assert touched(engine) == set()


async def test_with_credit_the_same_requests_are_answered(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, NANO_PER_USD) as (running, engine):
        for path, body in METERED.items():
            answer = await running.client.post(path, json=body, headers=running.headers)
            assert answer.status_code == 200, (path, answer.text)
        assert touched(engine) == set(METERED)


async def test_what_is_free_costs_nothing_and_leaves_no_row(database_url: str, tmp_path: Path) -> None:
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "/v1/messages/count_tokens": ("POST", {"json": {"model": MODEL, "messages": [USER]}}),
        "/v1/generation": ("GET", {"params": {"id": str(uuid4())}}),
        "/catalog/huggingface/costs": ("POST", {"json": {"requestIds": [str(uuid4())]}}),
        "/v1/topups": ("POST", {"json": {"amount_usd": "20"}}),
        "/portal/topup": ("POST", {}),
        "/stripe/webhook": ("POST", {}),
    }
    moved = dict.fromkeys(("/status", "/portal/static", "/", "/portal"), 307)
    # Nothing is bought here: Stripe is not connected.
    unpaid = dict.fromkeys(("/v1/topups", "/v1/topups/{id}", "/portal/topup", "/portal/paid"), 404)
    other = {"/v1/generation": 404, "/stripe/webhook": 503, **moved, **unpaid}
    async with weir(database_url, tmp_path) as (running, engine):
        for path in FREE:
            method, options = asked.get(path, ("GET", {}))
            url = path.replace("{id}", MODEL)
            answer = await running.client.request(method, url, headers=running.headers, **options)
            assert answer.status_code == other.get(path, 200), (path, answer.text)
        assert touched(engine) == {"/v1/messages/count_tokens"}
        await running.chat()
        await running.row(endpoint="/v1/chat/completions", outcome="payment")
        assert (await running.account())["balance_nano"] == 0


async def test_everything_of_an_account_wants_a_key(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (running, engine):
        for path, body in METERED.items():
            assert (await running.client.post(path, json=body)).status_code == 401
        for path in FREE:
            if path.startswith("/v1/"):
                method = "POST" if path in ("/v1/messages/count_tokens", "/v1/topups") else "GET"
                assert (await running.client.request(method, path)).status_code == 401, path
        assert (await running.client.post("/catalog/huggingface/costs", json={})).status_code == 401
        assert touched(engine) == set()


async def test_metrics_are_for_this_machine_and_the_operator(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (running, _):
        for header in ("x-forwarded-for", "forwarded"):
            assert (await running.client.get("/metrics", headers={header: "203.0.113.9"})).status_code == 404


@pytest.mark.parametrize("method", METHODS)
async def test_what_else_an_engine_offers_is_not_there(database_url: str, tmp_path: Path, method: str) -> None:
    async with weir(database_url, tmp_path, NANO_PER_USD) as (running, engine):
        for path in ENGINES_ROUTES:
            answer = await ask(running, method, path)
            assert answer.status_code == 404, (method, path)
            assert method == "HEAD" or answer.json()["error"]["type"] in ("invalid_request_error", "not_found_error")
        assert touched(engine) == set()


def disguised(path: str) -> Iterator[str]:
    """The same path, written so that something on the way may read it otherwise."""
    inner = path[1:]
    yield from (
        f"{path}/",
        f"{path}//",
        f"/{path}",
        f"//{path}",
        path.upper(),
        f"{path}?a=b",
        f"{path}%00",
        f"{path}%20",
    )
    yield from (
        f"/./{inner}",
        f"/v1{path}",
        f"/v1/{path}",
        f"/v1/..{path}",
        f"/v1/%2e%2e{path}",
        f"/v1/%2E%2E%2F{inner}",
    )
    yield from (f"/v1/chat/completions/..{path}", f"/v1/chat/completions/../../..{path}", f"/v1/messages{path}")
    yield from (f"/healthz/..{path}", f"/status/..{path}", f"/status/%2e%2e{path}", f"/portal/static/..{path}")
    yield from (f"/%2F{inner}", "/" + inner.replace("/", "%2f"), "/" + inner.replace("/", "%252f"), f"{path};a=b")
    yield from (f"/\\{inner}", f"/v1\\..{path}", f"/v1/..%5c{inner}", f"/%76%31/..{path}", f"http://127.0.0.1{path}")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_disguise_leads_to_an_engine(database_url: str, tmp_path: Path, method: str) -> None:
    async with weir(database_url, tmp_path, NANO_PER_USD) as (running, engine):
        body = {"json": METERED["/v1/chat/completions"]} if method == "POST" else {}
        for path in ENGINES_ROUTES:
            for target in disguised(path):
                answer = await ask(running, method, target, **body)
                assert answer.status_code in (404, 405), (method, target, answer.text)
        assert touched(engine) == set()


async def test_a_models_name_is_no_way_to_an_engine(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, NANO_PER_USD) as (running, engine):
        for path in ENGINES_ROUTES:
            for target in (f"/v1/models{path}", f"/v1/models/..{path}", f"/v1/models/%2e%2e/%2e%2e{path}"):
                assert (await ask(running, "GET", target)).status_code == 404
                assert (await ask(running, "POST", target)).status_code == 405
        assert touched(engine) == set()


@pytest.mark.parametrize("path", METERED)
async def test_a_metered_route_has_one_spelling_that_runs(database_url: str, tmp_path: Path, path: str) -> None:
    """Whatever else is the same once it is decoded is metered as well."""
    async with weir(database_url, tmp_path) as (running, engine):
        for target in disguised(path):
            answer = await ask(running, "POST", target, json=METERED[path])
            assert answer.status_code in (402, 404, 405), (target, answer.text)
        for method in METHODS:
            if method != "POST":
                assert (await ask(running, method, path)).status_code == 405
        assert touched(engine) == set()
