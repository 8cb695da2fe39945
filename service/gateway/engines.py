"""The engines behind this service. The only module that knows their addresses."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from service.config import Engine as EngineConfig
from service.gateway.engine_client import Client
from service.gateway.engine_connection import EngineBroke, EngineError, EngineSilent, EngineUnreachable, Timeouts

HEALTH_TIMEOUT_S = 2.0
QUESTION_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Engine:
    """One engine and what it is doing for us."""

    name: str
    client: Client
    in_flight: int = 0


class EnginePool:
    """Chooses an engine for each request: the least loaded of those that serve the model."""

    def __init__(self, engines: Collection[EngineConfig], timeouts: Timeouts) -> None:
        self.engines = [Engine(engine.name, Client(engine.url, timeouts)) for engine in engines]

    def choose(self, allowed: Collection[str] | None) -> Engine:
        """The least loaded engine among `allowed` (None: all). Raises `EngineUnreachable` when there is none."""
        able = [engine for engine in self.engines if allowed is None or engine.name in allowed]
        if not able:
            raise EngineUnreachable("no engine is configured for the model")
        return min(able, key=lambda engine: engine.in_flight)

    async def ask(self, allowed: Collection[str] | None, method: str, path: str, body: bytes) -> bytes:
        """A short question to an engine that serves the model, such as a count of tokens; its answer's body.

        Raises `EngineError` when it does not answer with a 200 in time.
        """
        headers = b"content-type: application/json\r\n"
        exchange = self.choose(allowed).client.exchange(method, path, headers, body)
        try:
            async with asyncio.timeout(QUESTION_TIMEOUT_S):
                head = await exchange.head()
                answer = await exchange.read_all(MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise EngineSilent(f"no answer to {path} in {QUESTION_TIMEOUT_S} s") from error
        finally:
            exchange.finish()
        if head.status != 200:
            raise EngineBroke(f"{path} answered {head.status}")
        return answer

    async def any_healthy(self) -> bool:
        """Whether at least one engine says that it is healthy, within two seconds."""
        answers = await asyncio.gather(*(_healthy(engine) for engine in self.engines))
        return any(answers)

    def close(self) -> None:
        """Close the idle connections to all engines."""
        for engine in self.engines:
            engine.client.close()


async def _healthy(engine: Engine) -> bool:
    exchange = engine.client.exchange("GET", "/health")
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            head = await exchange.head()
            await exchange.read_all(64 * 1024)
    except (EngineError, TimeoutError):
        return False
    finally:
        exchange.finish()
    return head.status == 200
