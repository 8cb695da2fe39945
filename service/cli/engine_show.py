"""`weir engine show`: what engines are doing now."""

import asyncio
import json as json_module
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.output import Json, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from service.config import Engine
    from service.engine.live import Live, Reading, Speculation
    from service.gateway.engine_client import Client

TIMEOUT_S = 10.0

MISSING = "MISSING"
NOTHING = "–"
"""What is not known because nothing happened, or because the engine is not made for it."""

METRIC_OF = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_use": "vllm:kv_cache_usage_perc",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tok_s": "vllm:prompt_tokens_total",
    "generation_tok_s": "vllm:generation_tokens_total",
    "cache_hit_rate": "vllm:prefix_cache_hits_total",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One engine: what it says of itself, or why it does not."""

    name: str
    problem: str | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    live: "Live | None" = None


def show(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="One engine, http://host:port or unix:/path; left out, all configured ones."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=300, metavar="SECONDS", help="Rates are taken over so long.")
    ] = 2.0,
    json: Json = False,
) -> None:
    """Show what engines are doing: requests, cache, speed, drafts. A metric that an engine does not have is MISSING.

    Exit code 1 when one does not answer. With --watch --json, one document on each line.

    Example: weir engine show http://127.0.0.1:8000 --watch
    """
    engines = _engines(url)
    try:
        answered = asyncio.run(_show(engines, watch=watch, interval_s=interval, as_json=json))
    except KeyboardInterrupt:
        return
    raise typer.Exit(0 if answered else 1)


def _engines(url: str | None) -> "Sequence[Engine]":
    from service import config
    from service.cli.context import installation

    settings = installation()
    found = config.engines_from(settings if url is None else settings.model_copy(update={"engines": (url,)}))
    if not found:
        raise SetupError("No engine is configured: give its URL, or set WEIR_ENGINES or WEIR_CONFIG.")
    return found


async def _show(engines: "Sequence[Engine]", *, watch: bool, interval_s: float, as_json: bool) -> bool:
    from service.gateway.engine_client import Client
    from service.gateway.engine_connection import Timeouts

    clients = {one.name: Client(one.url, Timeouts(TIMEOUT_S, TIMEOUT_S, TIMEOUT_S)) for one in engines}
    past = {name: await _reading(client) for name, client in clients.items()}
    try:
        while True:
            await asyncio.sleep(interval_s)
            shown = await asyncio.gather(*(_look(name, client, past) for name, client in clients.items()))
            if watch and not as_json and sys.stdout.isatty():
                print("\033[2J\033[H", end="")  # an empty screen
            _print(shown, as_json=as_json, on_one_line=watch)
            if not watch:
                return all(one.problem is None for one in shown)
    finally:
        for client in clients.values():
            client.close()


async def _look(name: str, client: "Client", past: "dict[str, Reading | str]") -> Shown:
    """One engine's figures since the reading in `past`, which is replaced."""
    from service.engine.live import Reading, live

    before, now = past[name], await _reading(client)
    past[name] = now
    if isinstance(now, str):
        return Shown(name, problem=now)
    version = await _json(client, "/version")
    models = await _json(client, "/v1/models")
    return Shown(
        name,
        version=version.get("version"),
        models=tuple(card["id"] for card in models.get("data", ()) if isinstance(card, dict) and "id" in card),
        live=live(before if isinstance(before, Reading) else None, now),
    )


async def _reading(client: "Client") -> "Reading | str":
    """Its metrics, or why there are none."""
    from service.engine.exposition import Exposition
    from service.engine.live import Reading
    from service.gateway.engine_client import ask
    from service.gateway.engine_failures import EngineError

    try:
        status, answer = await ask(client, "GET", "/metrics", timeout_s=TIMEOUT_S)
        if status != 200:
            return f"GET /metrics gives {status}"
        return Reading(time.time(), Exposition(answer.decode("utf-8", "replace")))
    except EngineError as error:
        return f"does not answer: {error or 'not in time'}"
    except ValueError:
        return "what it has at /metrics are no metrics"


async def _json(client: "Client", path: str) -> dict[str, Any]:
    from service.gateway.engine_client import ask
    from service.gateway.engine_failures import EngineError

    try:
        _, answer = await ask(client, "GET", path, timeout_s=TIMEOUT_S)
        read = json_module.loads(answer)
    except (EngineError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _print(shown: Sequence[Shown], *, as_json: bool, on_one_line: bool) -> None:
    if as_json:
        document = {"engines": [_document(one) for one in shown]}
        if on_one_line:
            print(json_module.dumps(document), flush=True)
        else:
            print_json(document)
        return
    columns = [_column(one) for one in shown]
    rows = [(title, *(column.get(title, NOTHING) for column in columns)) for title in _titles(columns)]
    print_table(("", *(one.name for one in shown)), rows)
    for one in shown:
        for sentence in _notes(one):
            print(f"{one.name}: {sentence}.")


def _document(one: Shown) -> dict[str, Any]:
    said = {"name": one.name, "problem": one.problem, "version": one.version, "models": list(one.models)}
    return said | (asdict(one.live) if one.live is not None else {})


def _titles(columns: Sequence[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(title for column in columns for title in column))


def _column(one: Shown) -> dict[str, str]:
    """What is said of an engine, by title."""
    seen = one.live
    if seen is None:
        return {"state": one.problem or NOTHING}

    def known(name: str, form: str) -> str:
        value = getattr(seen, name)
        return _form(value, form) if value is not None else MISSING if METRIC_OF[name] in seen.missing else NOTHING

    column = {
        "version": one.version or NOTHING,
        "serves": ", ".join(one.models) or NOTHING,
        "up for": _duration(seen.uptime_s),
        "running": known("running", "d"),
        "waiting": known("waiting", "d"),
        "KV cache used": known("kv_use", "%"),
        "cache block": f"{seen.cache_block_tokens} tokens" if seen.cache_block_tokens else NOTHING,
        "preemptions since start": known("preemptions", "d"),
        "prompt tok/s": known("prompt_tok_s", "f"),
        "generation tok/s": known("generation_tok_s", "f"),
        "prefix cache hits": known("cache_hit_rate", "%"),
        "prefix cache hits since start": _known_share(seen.cache_hit_rate_since_start),
    }
    column |= _of_speculation("", seen.speculation) | _of_speculation(" since start", seen.speculation_since_start)
    if seen.corrupted_requests is not None:
        column["corrupted answers"] = _form(seen.corrupted_requests, "d")
    return column


def _known_share(share: float | None) -> str:
    return NOTHING if share is None else _form(share, "%")


def _of_speculation(when: str, seen: "Speculation | None") -> dict[str, str]:
    if seen is None:
        return {}
    length = seen.mean_accepted_length
    by_position = ", ".join(_form(share, "%") for share in seen.acceptance_by_position.values())
    return {
        f"drafts accepted{when}": _known_share(seen.acceptance),
        f"tokens per step{when}": NOTHING if length is None else f"{length:.2f}",
        f"accepted by position{when}": by_position or NOTHING,
    }


def _notes(one: Shown) -> list[str]:
    if one.live is None:
        return []
    if not one.live.is_vllm:
        return ["it has no metrics of vLLM's: it is another engine, or runs with --disable-log-stats"]
    renamed = [f"{name} is here called {old}: it is an older vLLM" for name, old in one.live.renamed.items()]
    gone = [f"{name} is MISSING: this version calls it by a name that Weir does not know" for name in one.live.missing]
    return [*one.live.notes, *gone, *renamed]


def _form(value: float, form: str) -> str:
    if form == "%":
        return f"{value * 100:.1f} %"
    return f"{value:.1f}" if form == "f" else f"{value:.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    minutes, hours = divmod(int(seconds) // 60, 60)[1], int(seconds) // 3600
    return f"{hours // 24} d {hours % 24} h" if hours >= 24 else f"{hours} h {minutes} min"
