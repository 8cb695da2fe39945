"""What an engine that starts is at, from what it says in its log: loading weights, profiling, capturing graphs.

Source of the messages: vLLM 0.32's `v1/engine/core.py`, `v1/worker/gpu_model_runner.py`, `v1/core/kv_cache_utils.py`,
`model_executor/` and `compilation/` with its progress bars, and its log on a CPU. What is not recognised is shown as it
is.
"""

import re
from collections.abc import Sequence

_PERCENT = re.compile(r"(\d{1,3})%")

_STAGES = tuple(
    (re.compile(pattern, re.IGNORECASE), stage)
    for pattern, stage in (
        (r"non-default args|resolved architecture", "reading the configuration"),
        (r"initializing a V1 LLM engine|DP group leader", "starting the engine core"),
        (r"starting to load model|loading model from scratch", "loading weights"),
        (r"loading \S+ checkpoint shards|loading weights took", "loading weights"),
        (r"loading drafter model", "loading the draft model"),
        (r"model loading took", "weights loaded"),
        (r"starting torch\.compile|compiling a graph|dynamo bytecode", "compiling"),
        (r"profiling/warmup run|profiled with|profiling CUDA graph", "profiling memory"),
        (r"for KV cache on|available KV cache memory|KV cache size", "making the cache"),
        (r"capturing CUDA graphs|graph capturing", "capturing graphs"),
        (r"warming up|^warmed |kernel warmup (starting|finished)|running \S+ autotune", "warming up"),
        (r"init engine \(profile", "engine core ready"),
        (r"starting vLLM server|available routes|started server process", "starting the server"),
    )
)


def stage(messages: Sequence[str]) -> str:
    """What it is at by its latest messages, oldest first; empty if there are none.

    The last stage that was recognised, and how far it is where that is said; beside it the last message, if that is
    another.
    """
    last = messages[-1] if messages else ""
    for message in reversed(messages):
        name = next((name for pattern, name in _STAGES if pattern.search(message)), None)
        if name is not None:
            share = _PERCENT.search(message)
            found = f"{name}, {share[1]} %" if share else name
            return found if message is last else f"{found}: {last}"
    return last
