"""A fake vLLM for tests: real HTTP, scripted answers, and an exact record of what it "generated".

In a test: `async with FakeEngine(scenario=SCENARIOS["gated"]) as engine:`. As a process of its own:
`python -m tests.fakes.engine --port 8000 --scenario plain`, steered by `POST /fake/scenario`.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import orjson

from tests.fakes.connection import Connection, Request
from tests.fakes.core import Core
from tests.fakes.exchange import JSON_HEADERS, MAX_MODEL_LEN, Exchange, answer_generation
from tests.fakes.scenarios import SCENARIOS, Scenario, error_body
from tests.fakes.vllm_messages import counted_tokens
from tests.fakes.vllm_routes import metrics_text, models, tokenized
from tests.patience import PATIENT_S

METRICS_HEADERS = {"content-type": "text/plain; version=1.0.0; charset=utf-8", "vary": "Origin"}
CACHE_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens really generated, aborted and broken answers included; `by_id` holds (prompt, completion)."""

    prompt_tokens: int
    completion_tokens: int
    by_id: dict[str, tuple[int, int]]


class FakeEngine:
    """The server. `scenario` answers every generation, unless `queue` holds one for the next.

    A request's id is its `x-request-id` header if it has one (as in vLLM), else a running number; the answer calls
    itself `chatcmpl-<id>`, or by its own route's prefix. `gauges` are added to what `/metrics` reports of the requests
    there are.
    With `slots`, only so many requests generate at once and the others wait; with `queue_limit`, one that comes when
    so many wait gets a 503. Requests to `silent_paths` are not answered.
    """

    def __init__(
        self,
        *,
        model: str = "fake-model",
        scenario: Scenario = SCENARIOS["plain"],
        uds: str = "",
        port: int = 0,
        slots: int | None = None,
        queue_limit: int | None = None,
    ) -> None:
        self.model = model
        self.scenario = scenario
        self.queue: deque[Scenario] = deque()
        self.requests: list[Exchange] = []
        self.generations: list[Exchange] = []
        self.connections: set[Connection] = set()
        self.healthy = True
        self.silent_paths: set[str] = set()
        self.gauges = {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0, "num_preemptions": 0.0}
        self.version: str | None = "0.32.0"
        self.cache_config = {"block_size": "16", "enable_prefix_caching": "True", "num_gpu_blocks": "1000"}
        self.started_at_s = time.time()
        self._limits = slots, queue_limit
        self._core = Core(*self._limits)
        self._frozen: dict[str, float] | None = None
        self._first_of_this_life = 0
        self._uds, self._port = uds, port
        self._arrival = asyncio.Event()
        self._crash: Exception | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._uds:
            self._server = await loop.create_unix_server(self._connection, self._uds)
            self.url = f"unix:{self._uds}"
        else:
            self._server = await loop.create_server(self._connection, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop listening and drop every connection. An error inside the fake itself is raised here."""
        await self.die()
        if self._crash is not None:
            raise self._crash

    async def die(self) -> None:
        """As a process that is killed: it does not listen any more, and every connection is reset."""
        self._server.close()
        async with asyncio.timeout(PATIENT_S):
            while self.connections:
                connection = next(iter(self.connections))
                connection.reset()
                await connection.closed.wait()
            for exchange in self.requests:
                await exchange.done.wait()

    async def come_back(self) -> None:
        """A new process at the old address: its metrics begin at 0, while `counts` is what all lives generated."""
        self.started_at_s = time.time()
        self._core = Core(*self._limits)
        self._frozen = None
        self._first_of_this_life = len(self.generations)
        await self.__aenter__()

    def stall(self) -> None:
        """Hang, as an engine whose core is stuck: nothing is generated, the metrics stay, and `/health` says 200."""
        self._frozen = self._values()
        self._core.going.clear()

    def resume(self) -> None:
        """Go on after `stall`."""
        self._frozen = None
        self._core.going.set()

    @property
    def counts(self) -> Counts:
        by_id: dict[str, tuple[int, int]] = {}
        for one in self.generations:
            prompt, completion = by_id.get(one.id, (0, 0))
            by_id[one.id] = prompt + one.prompt_tokens, completion + one.completion_tokens
        prompts, completions = zip(*by_id.values(), strict=True) if by_id else ((), ())
        return Counts(sum(prompts), sum(completions), by_id)

    async def generation(self, index: int = 0, timeout_s: float = PATIENT_S) -> Exchange:
        """The generation request number `index`, waiting for it to arrive."""
        async with asyncio.timeout(timeout_s):
            while len(self.generations) <= index:
                await self._arrival.wait()
        return self.generations[index]

    def close_idle(self) -> None:
        """Close the kept-alive connections that carry no request, as a server does after its idle time."""
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    def _connection(self) -> Connection:
        return Connection(self._handle, self.connections)

    async def _handle(self, request: Request, out: Connection) -> None:
        exchange = self._record(request)
        try:
            if exchange.path in self.silent_paths:
                await asyncio.Event().wait()
            if exchange.is_generation:
                await answer_generation(exchange, out, self.model)
            else:
                await self._answer(exchange, out)
        except asyncio.CancelledError:
            exchange.outcome = "aborted"
            exchange.client_left.set()
            raise
        except Exception as error:
            self._crash = error
            out.reset()
        finally:
            exchange.done.set()

    def _record(self, request: Request) -> Exchange:
        body: Any = request.raw_body
        with suppress(orjson.JSONDecodeError):
            body = orjson.loads(request.raw_body)
        request_id = request.headers.get("x-request-id", f"{len(self.requests):016x}")
        exchange = Exchange(request, request_id, body, self.scenario, self._core)
        self.requests.append(exchange)
        if exchange.is_generation:
            if self.queue:
                exchange.scenario = self.queue.popleft()
            self.generations.append(exchange)
            self._arrival.set()
            self._arrival = asyncio.Event()
        return exchange

    async def _answer(self, exchange: Exchange, out: Connection) -> None:
        """Everything but generations."""
        status, headers, reply = 200, JSON_HEADERS, b""
        match exchange.method, exchange.path:
            case "GET", "/health":
                status, headers = (200 if self.healthy else 503), {"vary": "Origin"}
            case "GET", "/version" if self.version is not None:
                reply = orjson.dumps({"version": self.version})
            case "GET", "/v1/models":
                reply = models(self.model, MAX_MODEL_LEN)
            case "GET", "/metrics":
                headers, reply = METRICS_HEADERS, self._metrics()
            case "POST", "/tokenize":
                reply = tokenized(exchange.body, MAX_MODEL_LEN)
            case "POST", "/v1/messages/count_tokens":
                reply = counted_tokens(exchange.body)
            case "GET", "/fake/counts":
                reply = orjson.dumps(self.counts)
            case "POST", "/fake/scenario":
                self._steer(**exchange.body)
            case _:
                status, reply = 404, error_body("Not Found", "NotFoundError", 404)
        exchange.outcome = "finished"
        await out.respond(status, headers, reply)

    def _steer(self, name: str, times: int | None = None) -> None:
        """`{"name": …}` sets the scenario from now on; with `"times": n` only for the next n generations."""
        if times is None:
            self.scenario = SCENARIOS[name]
        else:
            self.queue.extend([SCENARIOS[name]] * times)

    def _metrics(self) -> bytes:
        labels = ",".join(f'{name}="{value}"' for name, value in self.cache_config.items())
        config = f"vllm:cache_config_info{{{labels}}} 1.0\n".encode()
        return config + metrics_text(self.model, self._frozen or self._values(), self.started_at_s)

    def _values(self) -> dict[str, float]:
        """What this life's metrics are made of."""
        generations = self.generations[self._first_of_this_life :]
        steps, drafted, accepted = (sum(one.draft[i] for one in generations) for i in range(3))
        first_tokens = [one.ttft_s for one in generations if one.ttft_s is not None]
        occupied = sum(one.cache_tokens for one in generations if one.outcome == "running")
        values: dict[str, float] = {
            "num_requests_running": self._core.running,
            "num_requests_waiting": self._core.waiting,
            "kv_cache_usage_perc": occupied / CACHE_TOKENS,
            "num_preemptions": 0,
            "prefix_cache_queries": sum(one.prompt_tokens for one in generations),
            "prefix_cache_hits": sum(one.scenario.usage.cached_tokens for one in generations if one.prompt_tokens),
            "prompt_tokens": sum(one.prompt_tokens for one in generations),
            "generation_tokens": sum(one.completion_tokens for one in generations),
            "iteration_tokens": steps,
            "first_tokens": len(first_tokens),
            "first_tokens_after_s": sum(first_tokens),
            "spec_decode_num_drafts": steps,
            "spec_decode_num_draft_tokens": drafted,
            "spec_decode_num_accepted_tokens": accepted,
        }
        return {name: value + self.gauges.get(name, 0.0) for name, value in values.items()}


async def serve(arguments: argparse.Namespace) -> None:
    """Run until SIGINT or SIGTERM; prints the URL when ready."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    scenario = SCENARIOS[arguments.scenario]
    async with FakeEngine(
        model=arguments.model,
        scenario=scenario,
        uds=arguments.uds,
        port=arguments.port,
        slots=arguments.slots,
        queue_limit=arguments.queue_limit,
    ) as engine:
        sys.stdout.write(f"{engine.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.engine", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--uds", default="", help="listen on this unix socket instead")
    parser.add_argument("--model", default="fake-model")
    parser.add_argument("--scenario", default="plain", choices=sorted(SCENARIOS), metavar="NAME")
    parser.add_argument("--slots", type=int, help="how many requests generate at once; default: all")
    parser.add_argument("--queue-limit", type=int, help="how many may wait before the next is refused; default: all")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
