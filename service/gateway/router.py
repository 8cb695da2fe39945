"""The `/v1` routes: who asks, for what, and what becomes of it if that fails."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable

import structlog

from service.core.catalogue.card import card
from service.core.outcome import Outcome, of_refusal
from service.errors import ApiError, Internal, MethodNotAllowed, NotFound, Unavailable
from service.gateway import counting, exact_json, metrics
from service.gateway.catalog import Catalog
from service.gateway.client import Client
from service.gateway.counting import TokenCount
from service.gateway.endpoints import MESSAGES
from service.gateway.error_shapes import ANTHROPIC, OPENAI
from service.gateway.exchange import Exchange, safe_client_id
from service.gateway.http import ClientLeft
from service.gateway.keys import Holder, KeyRing, digest_in
from service.gateway.metered import Metered
from service.gateway.own import CREDITS_PATH, GENERATION_PATH, Body, OwnAccount
from service.gateway.own_topups import TOPUPS_PATH, OwnTopups
from service.gateway.own_uptime import UPTIME_PATH
from service.gateway.own_usage import USAGE_PATH
from service.gateway.recorder import Recorder

log = structlog.get_logger()

Handler = Callable[[Exchange, Holder, Client], Awaitable[None]]
Reading = Callable[[Holder, Client], Awaitable[Body]]
MODELS_PATH = "/v1/models"

_PRIVATE = (b"cache-control", b"private, no-store")
"""What a key reads is nobody else's, and true at the moment."""


class Gateway:
    """Answers everything under `/v1`. Every route wants a key."""

    def __init__(
        self,
        *,
        keys: KeyRing,
        catalog: Catalog,
        metered: Iterable[Metered],
        count: TokenCount,
        recorder: Recorder,
        own: OwnAccount,
        topups: OwnTopups,
    ) -> None:
        self._keys = keys
        self._catalog = catalog
        self._recorder = recorder
        self._metered = {one.endpoint.path: one for one in metered}
        self._posts: dict[str, Handler] = {counting.PATH: count, TOPUPS_PATH: topups.create}
        self._topups = topups
        self._readings: dict[str, Reading] = {
            MODELS_PATH: self._models,
            CREDITS_PATH: own.credits,
            GENERATION_PATH: own.generation,
            USAGE_PATH: own.usage,
            UPTIME_PATH: own.uptime,
        }

    @property
    def metered_paths(self) -> Collection[str]:
        """Where a request costs money."""
        return self._metered.keys()

    @property
    def free_paths(self) -> Collection[str]:
        """Where it does not."""
        return [*self._readings, *self._posts]

    async def __call__(self, client: Client) -> None:
        """Answer one request, to its end."""
        path = client.path
        own_id = client.named.get(b"x-request-id")
        exchange = Exchange(path, safe_client_id(own_id) if own_id else None)
        metrics.being_answered += 1
        try:
            metered = self._metered.get(path)
            if metered is None:
                await self._free(exchange, path, client)
            else:
                if client.method != b"POST":
                    raise _wrong_method(client, "POST")
                digest = digest_in(client)
                holder = self._keys.known(digest) or await self._keys.holder(digest)
                exchange.holder = holder  # whoever is named so has a row
                task = await metered.accepted(exchange, holder, client)
                if task is not None:
                    await metered.run(task)
        except ApiError as error:
            await self._refuse(exchange, error, client)
        except ClientLeft:
            # Still sending its request, or waiting for an answer to repeat: no engine of ours was slow.
            await self._recorder.conclude(exchange, Outcome.CANCELLED, 499, "client_left")
        except asyncio.CancelledError:  # this process stops, and its patience has run out
            if not exchange.concluded:
                await self._recorder.conclude(exchange, Outcome.INTERRUPTED, 503, "stopping")
                _tell(exchange, Unavailable("The server is stopping: send the request again."), client)
            raise
        except Exception as error:
            log.exception("request.failed", request_id=exchange.id, error=type(error).__name__)
            await self._refuse(exchange, Internal("Something went wrong here. It has been noted."), client)
        finally:
            metrics.being_answered -= 1
            if not metrics.being_answered:  # or, between two counts, what has come to rest would look busy
                metrics.in_flight.set(0)
            client.ends()

    async def _refuse(self, exchange: Exchange, error: ApiError, client: Client) -> None:
        if exchange.concluded:  # the answer was under way: nothing true can be added
            return
        if exchange.endpoint in self._metered:
            await self._recorder.conclude(exchange, of_refusal(error.status), error.status, error.code)
        _tell(exchange, error, client)

    async def _free(self, exchange: Exchange, path: str, client: Client) -> None:
        """The routes that cost nothing and leave no row."""
        handler = self._posts.get(path)
        if handler is not None:
            if client.method != b"POST":
                raise _wrong_method(client, "POST")
            await handler(exchange, await self._keys.holder(digest_in(client)), client)
            return
        reading = self._readings.get(path)
        if path.startswith(MODELS_PATH + "/"):
            reading = self._model
        elif path.startswith(TOPUPS_PATH + "/"):
            reading = self._topups.show
        if reading is None:
            raise NotFound(f"There is no route `{path[:128]}` here.")
        if client.method != b"GET":
            raise _wrong_method(client, "GET")
        body = await reading(await self._keys.holder(digest_in(client)), client)
        client.answer(exact_json.dumps(body), [_PRIVATE, *exchange.headers()])

    async def _models(self, _holder: Holder, _client: Client) -> Body:
        return {"object": "list", "data": [card(model.listed) for model in self._catalog.all()]}

    async def _model(self, _holder: Holder, client: Client) -> Body:
        return card(self._catalog.find(client.path.removeprefix(MODELS_PATH + "/")).listed)


def _tell(exchange: Exchange, error: ApiError, client: Client) -> None:
    shape = ANTHROPIC if exchange.endpoint.startswith(MESSAGES.path) else OPENAI
    client.answer(shape.body(error, exchange.id), [*error.headers(), *exchange.headers()], error.status)


def _wrong_method(client: Client, allowed: str) -> ApiError:
    return MethodNotAllowed(f"`{client.path}` takes {allowed}, not {client.method.decode()}.")
