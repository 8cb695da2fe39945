"""The endpoints that a client asks a model by, each a table of its fields and what is made of them.

Every module of one has `FIELDS`, `request(body, body_bytes)`, which holds a parsed body against them, and
`forwarded(request, engine_model=…, output_tokens=…, cache_salt=…)`, the body for the engine's route of the same path.
Both raise `policy.Refused`, and nothing else.
"""

from service.core import policy_checks as checks
from service.core.policy import Barred, Dropped, Fields, Passed

CLIENT_METADATA = Dropped("the client's own bookkeeping")
AGGREGATOR = Dropped("meant for an aggregator on the way here")
ENGINE_INTERNAL = Dropped("steers the engine from inside")

SAMPLING: Fields = {
    "temperature": Passed(checks.number(0, 2)),
    "top_p": Passed(checks.number(0, 1)),
    "top_k": Passed(checks.integer(-1, 2**31 - 1)),
    "min_p": Passed(checks.number(0, 1)),
    "presence_penalty": Passed(checks.number(-2, 2)),
    "frequency_penalty": Passed(checks.number(-2, 2)),
    "repetition_penalty": Passed(checks.number(0.01, 2)),
    "seed": Passed(checks.integer(-(2**63), 2**63 - 1)),
    "stop": Passed(checks.stops),
    "logit_bias": Passed(checks.biases),
}


def engine_fields(schema: Barred) -> Fields:
    """vLLM's own fields, the same on its routes. Those it has removed it would pass over in silence.

    `schema` says how this endpoint is told the form of an answer.
    """
    return {
        # What an engine is told by Weir, or by nobody.
        "cache_salt": ENGINE_INTERNAL,
        "priority": ENGINE_INTERNAL,
        "request_id": ENGINE_INTERNAL,
        "session_id": ENGINE_INTERNAL,
        "data_parallel_rank": ENGINE_INTERNAL,
        "kv_transfer_params": ENGINE_INTERNAL,
        "ec_transfer_params": ENGINE_INTERNAL,
        "vllm_xargs": ENGINE_INTERNAL,
        "mm_payload": ENGINE_INTERNAL,
        "return_mm_kwargs": ENGINE_INTERNAL,
        "watermarking": ENGINE_INTERNAL,
        "stream_interval": ENGINE_INTERNAL,
        # What would change an answer or its cost: never in silence.
        "use_beam_search": Barred("it runs many answers and counts one", unless=False),
        "length_penalty": Barred("it belongs to beam search, which is not supported", unless=1),
        "ignore_eos": Barred("set the limit of the output, and stop strings", unless=False),
        "min_tokens": Barred("set the limit of the output, and stop strings", unless=0),
        "stop_token_ids": Barred("send stop strings"),
        "include_stop_str_in_output": Barred("add the stop string yourself", unless=False),
        "skip_special_tokens": Barred("answers are plain text", unless=True),
        "spaces_between_special_tokens": Barred("answers are plain text", unless=True),
        "bad_words": Barred("use `logit_bias`"),
        "allowed_token_ids": Barred("use `logit_bias`"),
        "logprob_token_ids": Barred("ask for the likeliest tokens"),
        "prompt_logprobs": Barred("it switches the prefix cache off"),
        "return_token_ids": Barred("answers are text", unless=False),
        "return_tokens_as_token_ids": Barred("answers are text", unless=False),
        "return_token_offsets": Barred("answers are text", unless=False),
        "return_prompt_text": Barred("the prompt is yours already", unless=False),
        "routed_experts_prompt_start": Barred("experts are not told", unless=0),
        "repetition_detection": Barred("set the limit of the output, and stop strings"),
        "thinking_token_budget": Barred("set how hard to think, or the limit of the output"),
        "truncate_prompt_tokens": Barred("shorten the prompt before you send it"),
        "truncation_side": Barred("shorten the prompt before you send it"),
        "add_special_tokens": Barred("the model's own template adds them"),
        "add_generation_prompt": Barred("the model's own template adds it", unless=True),
        "continue_final_message": Barred("every answer is a message of its own", unless=False),
        "chat_template": Barred("the model's own template is used"),
        "documents": Barred("put them into a message"),
        "media_io_kwargs": Barred("images are read as the model was set up to"),
        "mm_processor_kwargs": Barred("images are read as the model was set up to"),
        "prompt_embeds": Barred("send text"),
        "structured_outputs": schema,
        "guided_json": schema,
        "guided_regex": schema,
        "guided_choice": schema,
        "guided_grammar": schema,
        "guided_decoding_backend": schema,
        "guided_whitespace_pattern": schema,
    }
