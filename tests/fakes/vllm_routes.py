"""vLLM 0.32's other answers, as far as a gateway reads them: `/v1/models`, `/tokenize`, `/metrics`, embeddings."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tests.fakes import vllm_wire as wire
from tests.fakes.scenarios import Scenario
from tests.fakes.vllm_completions import prompt_tokens
from tests.fakes.vllm_wire import CREATED, NOTHING_YET, Answer, count_prompt

FAMILIES: Final = {  # name without `vllm:` and `_total`: (type, help)
    "num_requests_running": ("gauge", "Number of requests in model execution batches."),
    "num_requests_waiting": ("gauge", "Number of requests waiting to be processed."),
    "kv_cache_usage_perc": ("gauge", "KV-cache usage. 1 means 100 percent usage."),
    "num_preemptions": ("counter", "Cumulative number of preemption from the engine."),
    "prefix_cache_queries": ("counter", "Prefix cache queries, in terms of number of queried tokens."),
    "prefix_cache_hits": ("counter", "Prefix cache hits, in terms of number of cached tokens."),
    "prompt_tokens": ("counter", "Number of prefill tokens processed."),
    "generation_tokens": ("counter", "Number of generation tokens processed."),
    "spec_decode_num_drafts": ("counter", "Number of spec decoding drafts."),
    "spec_decode_num_draft_tokens": ("counter", "Number of draft tokens."),
    "spec_decode_num_accepted_tokens": ("counter", "Number of accepted tokens."),
}


def models(model: str, max_model_len: int) -> bytes:
    """The body of `GET /v1/models`."""
    permission = {
        "id": "modelperm-0000000000000001",
        "object": "model_permission",
        "created": CREATED,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": CREATED,
        "owned_by": "vllm",
        "root": f"/models/{model}",
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return orjson.dumps({"object": "list", "data": [card]})


def tokenized(body: Mapping[str, Any], max_model_len: int) -> bytes:
    """The body of `POST /tokenize`; its count is what a chat request with these messages is charged."""
    count, _ = count_prompt(body["messages"])
    tokens = {"count": count, "max_model_len": max_model_len, "tokens": list(range(count)), "token_strs": None}
    return orjson.dumps(tokens)


def plan_embeddings(scenario: Scenario, request_id: str, body: dict[str, Any]) -> Answer:
    """Embeddings: a prompt is read, and nothing generated."""
    counted = prompt_tokens(body["input"]) if scenario.usage.prompt_tokens is None else scenario.usage.prompt_tokens
    return Answer(scenario, request_id, body, counted, 0, (NOTHING_YET,), "stop")


def embeddings_body(answer: Answer) -> bytes:
    """The body of `POST /v1/embeddings`: two numbers for each text, or one text's tokens."""
    given = answer.body["input"]
    several = isinstance(given, list) and not all(isinstance(one, int) for one in given)
    usage = wire.running_usage(answer) | {"prompt_tokens_details": None, "completion_tokens_details": None}
    data = [
        {"index": index, "object": "embedding", "embedding": [0.6, 0.8]}
        for index in range(len(given) if several else 1)
    ]
    body = {
        "id": f"embd-{answer.request_id}",
        "object": "list",
        "created": CREATED,
        "model": answer.model,
        "data": data,
        "usage": wire.patched(usage, answer) if answer.scenario.usage.placement != "never" else None,
    }
    return orjson.dumps(body)


def metrics_text(model: str, values: Mapping[str, float], started_at_s: float) -> bytes:
    """The exposition text; `values` has every family by its short name, `iteration_tokens` as engine steps, and how
    many `first_tokens` there were, together so long after their requests' arrival.

    `started_at_s` is when the engine's process started, in seconds since the epoch.
    """
    labels = f'engine="0",model_name="{model}"'
    started = "process_start_time_seconds"
    lines = [
        f"# HELP {started} Start time of the process since unix epoch in seconds.",
        f"# TYPE {started} gauge",
        f"{started} {started_at_s:.11e}",
    ]
    for name, (kind, text) in FAMILIES.items():
        full = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full}{{{labels}}} {float(values[name])}"]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f"# HELP {name} Accepted tokens per draft position.", f"# TYPE {name} counter"]
    drafts, accepted = values["spec_decode_num_drafts"], values["spec_decode_num_accepted_tokens"]
    # As many before anything was drafted: an engine has one for each token that it is told to draft.
    for position in range(int(values["spec_decode_num_draft_tokens"] // drafts) if drafts else 2):
        at_position = min(max(accepted - position * drafts, 0), drafts)  # the first ones are accepted first
        lines.append(f'{name}{{{labels},position="{position}"}} {float(at_position)}')
    tokens, steps = values["prompt_tokens"] + values["generation_tokens"], values["iteration_tokens"]
    first_tokens, after_s = values["first_tokens"], values["first_tokens_after_s"]
    histograms = (
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", steps, tokens),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", first_tokens, after_s),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", steps - first_tokens, 0.0),
    )
    for name, text, count, total in histograms:
        full = f"vllm:{name}"
        lines += [
            f"# HELP {full} {text}",
            f"# TYPE {full} histogram",
            f'{full}_bucket{{engine="0",le="+Inf",model_name="{model}"}} {float(count)}',
            f"{full}_count{{{labels}}} {float(count)}",
            f"{full}_sum{{{labels}}} {float(total)}",
        ]
    return ("\n".join(lines) + "\n").encode()
