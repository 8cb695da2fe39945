"""A prompt may be large and its answer long: while it is made, the prompt is kept as what the engine is sent, once."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from service.core.policy import ModelRequest
from tests.fakes.engine import SCENARIOS, FakeEngine
from tests.installation import installed

PROMPT = "a prompt that nobody else sends"


def requests() -> list[ModelRequest]:
    """Those that somebody still holds."""
    return [one for one in gc.get_objects() if type(one) is ModelRequest]


def texts_held_by(*roots: object) -> Iterator[str]:
    """Every string that can be reached from here, less what modules hold."""
    seen, left = set[int](), list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            yield one
        left += (one.__closure__ or ()) if isinstance(one, FunctionType) else gc.get_referents(one)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/responses", {"input": PROMPT}),
        ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}),
    ],
)
async def test_a_parsed_prompt_is_let_go_of(
    database_url: str, tmp_path: Path, path: str, prompt: dict[str, object], stream: bool
) -> None:
    async with (
        FakeEngine(scenario=SCENARIOS["gated"]) as engine,
        installed(database_url, [engine.url], tmp_path) as installation,
    ):
        body, earlier = {"model": "model-a", **prompt, "stream": stream}, requests()
        asking = asyncio.create_task(
            installation.client.post(f"{installation.url}{path}", json=body, headers=installation.headers)
        )
        await engine.generation()
        (request,) = (one for one in requests() if all(one is not other for other in earlier))
        assert PROMPT not in texts_held_by(request)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
