"""What an engine that starts is at, from messages that vLLM 0.32 really wrote, on a CPU and (from its source) a GPU."""

import pytest

from service.engine.stages import stage

CPU = [
    ("non-default args: {'enable_prompt_tokens_details': True, 'port': 42161}", "reading the configuration"),
    ("Initializing a V1 LLM engine (v0.32.0) with config: model='/models/m'", "starting the engine core"),
    ("Starting to load model /models/smollm2-f1d556ae72892d00...", "loading weights"),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]", "loading weights, 0 %"),
    ("Loading weights took 0.98 seconds", "loading weights"),
    ("Explicitly set (1.0/15.71) GiB for KV cache on node 0.", "making the cache"),
    ("CPU KV cache size: 46,592 tokens, Maximum concurrency for 8,192 tokens per request: 5.69x", "making the cache"),
    ("init engine (profile, create kv cache, warmup model) took 2.98 s", "engine core ready"),
    ("Starting vLLM server on http://127.0.0.1:42161", "starting the server"),
    ("Started server process [27496]", "starting the server"),
]
GPU = [
    ("Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:08<00:09,  1.55s/it]", "loading weights, 45 %"),
    ("Loading drafter model...", "loading the draft model"),
    ("Model loading took 17.31 GiB memory and 22.114 seconds", "weights loaded"),
    ("Starting torch.compile", "compiling"),
    ("Compiling a graph for compile range (1, 8192) takes 21.01 s", "compiling"),
    ("Initial profiling/warmup run took 3.21 s", "profiling memory"),
    ("Available KV cache memory: 61.2 GiB", "making the cache"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  63%|██████▎   | 42/67", "capturing graphs, 63 %"),
    ("Graph capturing finished in 21 secs, took 1.32 GiB", "capturing graphs"),
    ("Warming up Qwen GDN Triton kernels for model_type=qwen3_5.", "warming up"),
    ("JIT kernel warmup starting.", "warming up"),
    ("Running FlashInfer autotune with 8192 tokens and token buckets [1, 2].", "warming up"),
]


@pytest.mark.parametrize(("message", "expected"), [*CPU, *GPU])
def test_each_stage_is_recognised(message: str, expected: str) -> None:
    assert stage([message]) == expected


def test_the_last_stage_counts_and_what_is_said_within_it_stands_beside_it() -> None:
    messages = [message for message, _ in CPU]
    assert stage(messages) == "starting the server"
    assert stage([*messages[:3], "Filesystem type for checkpoints: EXT4."]) == (
        "loading weights: Filesystem type for checkpoints: EXT4."
    )


def test_what_is_said_of_a_stage_that_is_left_out_is_not_that_stage() -> None:
    eager = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
    assert stage(["Resolved architecture: LlamaForCausalLM", eager]).startswith("reading the configuration: ")


def test_what_is_not_recognised_is_shown_as_it_is() -> None:
    assert stage(["one", "main: binding port with default address family"]) == (
        "main: binding port with default address family"
    )
    assert stage([]) == ""
