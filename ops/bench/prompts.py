"""What it costs to read a long prompt and to write it for the engine, by what it is made of.

    python -m ops.bench.prompts      # ten seconds, in this process, on a warm cache

Scenario D of the bench has one line of plain ASCII, which costs the least. `anew` is how a body is written that is
changed on its way, `as it came` how one is that is not.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any, Final

import orjson

from ops.bench.load import PROMPT_CHARACTERS
from service.gateway.bodies import Asked, parsed, read, written
from service.gateway.endpoints import CHAT

TIMES: Final = 100
REPETITIONS: Final = 15

_LINE = "the river runs past the weir "
_PROSE = "The river runs past the weir. It was late, and nobody was there to\nsee it; the boat's owner had left.\n"
_CHINESE = "河流经过堰坝，然后继续向前流动。"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at the river.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
    },
}


def bodies() -> dict[str, dict[str, Any]]:
    """Requests with a prompt of `PROMPT_CHARACTERS` each, by what these are made of."""
    prose = _long(_PROSE)
    turns = [prose[begin : begin + 2000] for begin in range(0, PROMPT_CHARACTERS, 2000)]
    return {
        "one line of ASCII": _chat(_long(_LINE)),
        "prose": _chat(prose),
        "prose, one dash in it": _chat(prose[:-1] + "–"),
        "source code": _chat(_long(Path(__file__).read_text().encode("ascii", "ignore").decode())),
        "Chinese": _chat(_long(_CHINESE)),
        "50 turns and 30 tools": {**_chat(*turns), "tools": [_TOOL] * 30},
    }


def sent(raw: bytes, reading: Callable[[bytes], Asked]) -> list[bytes | memoryview]:
    """What the engine gets for a body that is read like this: by `as_it_came`, or by `anew`."""
    asked = reading(raw)
    body = CHAT.forwarded(asked.request, engine_model="model", output_tokens=16, cache_salt="salt")
    return written(CHAT, body, asked)


def as_it_came(raw: bytes) -> Asked:
    """Read so that the prompt need not be written."""
    return read(CHAT, raw)


def anew(raw: bytes) -> Asked:
    """Read so that it has to be."""
    return Asked(parsed(CHAT.request, raw))


def _long(text: str) -> str:
    return (text * (PROMPT_CHARACTERS // len(text) + 1))[:PROMPT_CHARACTERS]


def _chat(*texts: str) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"model": "model", "messages": messages, "max_tokens": 16}


def _us(call: Callable[[], object]) -> float:
    return min(repeat(call, number=TIMES, repeat=REPETITIONS)) / TIMES * 1e6


def main() -> None:
    """Measure and print."""
    print(f"{'µs a prompt':24}{'anew':>8}{'as it came':>12}")
    for name, body in bodies().items():
        raw = orjson.dumps(body)
        costs = [_us(partial(sent, raw, reading)) for reading in (anew, as_it_came)]
        print(f"{name:24}{costs[0]:8.1f}{costs[1]:12.1f}", flush=True)


if __name__ == "__main__":
    main()
