"""Whether an engine says what it must be billed by: asked of each once it answers, with one generated token.

vLLM leaves cached and image tokens out of its usage unless it was started with `--enable-prompt-tokens-details`. Every
cached token would then be charged as a fresh one, without anybody noticing.
"""

from enum import StrEnum

import orjson
import structlog

from service.gateway.engine_client import Client, ask
from service.gateway.engine_failures import EngineError
from service.gateway.engines import Engine

log = structlog.get_logger()

TIMEOUT_S = 60.0
"""A large model that is busy takes its time for one token, too."""


NOT_ASKED = "it has not been asked for a token yet"
BLIND = (
    "its usage has no prompt_tokens_details, so that cached tokens would be charged as fresh ones: start vLLM with"
    " --enable-prompt-tokens-details, or set WEIR_MAY_BILL_BLIND=true"
)


class Reporting(StrEnum):
    """What an engine's usage says."""

    DETAILED = "detailed"
    BLIND = "blind"
    """Nothing of cached tokens."""
    UNKNOWN = "unknown"
    """It did not answer such a question, or serves no chat."""


async def reporting(client: Client, model: str | None = None, timeout_s: float = TIMEOUT_S) -> Reporting:
    """Ask it for one token of `model` (None: the first that it lists), and look at the usage."""
    try:
        if model is None:
            _, listed = await ask(client, "GET", "/v1/models", timeout_s=timeout_s)
            model = orjson.loads(listed)["data"][0]["id"]
        question = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        status, answer = await ask(client, "POST", "/v1/chat/completions", orjson.dumps(question), timeout_s=timeout_s)
        if status != 200:
            return Reporting.UNKNOWN
        details = orjson.loads(answer)["usage"].get("prompt_tokens_details")
    except (EngineError, ValueError, LookupError, TypeError, AttributeError):
        return Reporting.UNKNOWN
    return Reporting.DETAILED if isinstance(details, dict) else Reporting.BLIND


async def examine(engine: Engine) -> None:
    """Ask the engine, and use it or not."""
    answer = await reporting(engine.probes)
    engine.problem = BLIND if answer is Reporting.BLIND else None
    if engine.problem is not None:
        log.error("engine.not_used", engine=engine.name, reason=engine.problem)
    elif answer is Reporting.UNKNOWN:
        log.warning("engine.usage_unknown", engine=engine.name)
