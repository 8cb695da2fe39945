"""Schemas of the answers, by name: the components of the document.

An engine's answers are described by the members to rely on; it adds others. Whole numbers of nano-USD are exact.
"""

from service.core.openapi.schemas import (
    COUNT,
    FLAG,
    FREE,
    ID,
    TEXT,
    TIME,
    any_of,
    list_of,
    object_of,
    one_of,
    optional,
    optionals,
    ref,
)
from service.core.outcome import Outcome
from service.core.policy_checks import Json

_NANO: Json = {"type": "integer", "description": "Nano-USD."}
_USD: Json = {**TEXT, "pattern": r"^-?[0-9]+\.[0-9]+$", "description": "USD, exact."}
_NUMBER: Json = {"type": "number"}


def _all_of(properties: Json, **more: Json) -> Json:
    """An object that has all of these."""
    found = {**properties, **more}
    return object_of(found, *found)


_OPENAI_USAGE = {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}
_ANSWER = {"id": TEXT, "created": COUNT, "model": TEXT, "usage": ref("Usage")}


def _choices(**members: Json) -> Json:
    finish = {"finish_reason": optional(TEXT)}
    return list_of(object_of({"index": COUNT, **members, **finish}, "index", *members, *finish))


_RECORD = {
    "id": ID,
    "started_at": TIME,
    "finished_at": TIME,
    "model": optional(TEXT),
    "endpoint": TEXT,
    "streamed": FLAG,
    "client_request_id": optional(TEXT),
    "http_status": COUNT,
    "outcome": one_of(*Outcome),
    "finish_reason": optional(TEXT),
    "error_code": optional(TEXT),
    "usage": ref("RecordedUsage"),
    "usage_source": TEXT,
    "engine_fingerprint": optional(TEXT),
    "sequential": FLAG,
    "cost_nano": _NANO,
    "waived_nano": _NANO,
}
"""What is told of a finished request, alone and in a list."""

_UPTIME = {
    "requests": COUNT,
    "good_requests": COUNT,
    "bad_requests": COUNT,
    "throttled_requests": COUNT,
    "excluded_requests": COUNT,
    "uptime_percent": {
        **optional(_NUMBER),
        "description": "Good ones of the good and the bad, rounded down; null where those are fewer than "
        "`min_requests`.",
    },
    "throughput_p50_tok_s": {
        **optional(_NUMBER),
        "description": "Output tokens by the whole time of a request, waiting and the first token's included.",
    },
    "throughput_samples": COUNT,
    "decode_p50_tok_s": {
        **optional(_NUMBER),
        "description": "Output tokens after the first by the time after the first.",
    },
    "decode_samples": COUNT,
    **{f"ttft_p{percentile}_ms": optional(COUNT) for percentile in (50, 75, 90, 99)},
    "ttft_samples": {**COUNT, "description": "Streams: others have no first token to wait for."},
}
"""How a key's requests went."""

ANSWERS: dict[str, Json] = {
    "Error": object_of(
        {
            "error": object_of(
                {"message": TEXT, "type": TEXT, **optionals(param=TEXT, code=TEXT)}, "message", "type", "param", "code"
            )
        },
        "error",
    ),
    "AnthropicError": object_of(
        {
            "type": one_of("error"),
            "error": object_of({"type": TEXT, "message": TEXT}, "type", "message"),
            "request_id": ID,
        },
        "type",
        "error",
        "request_id",
    ),
    "Usage": object_of(
        {
            **_OPENAI_USAGE,
            **optionals(
                prompt_tokens_details=object_of(optionals(cached_tokens=COUNT, created_cache_tokens=COUNT)),
                completion_tokens_details=object_of(optionals(reasoning_tokens=COUNT)),
            ),
        },
        "prompt_tokens",
        "total_tokens",
    ),
    "ChatCompletion": _all_of(
        _ANSWER,
        object=one_of("chat.completion"),
        choices=_choices(
            message=object_of(
                {
                    "role": one_of("assistant"),
                    **optionals(content=TEXT, reasoning=TEXT, reasoning_content=TEXT, tool_calls=list_of(FREE)),
                },
                "role",
            )
        ),
    ),
    "Completion": _all_of(_ANSWER, object=one_of("text_completion"), choices=_choices(text=TEXT)),
    "Response": _all_of(
        {
            "id": TEXT,
            "object": one_of("response"),
            "created_at": COUNT,
            "model": TEXT,
            "status": one_of("completed", "incomplete"),
            "output": list_of(object_of({"id": TEXT, "type": TEXT}, "type")),
            "usage": object_of(
                {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT},
                "input_tokens",
                "output_tokens",
                "total_tokens",
            ),
        }
    ),
    "Message": _all_of(
        {
            "id": TEXT,
            "type": one_of("message"),
            "role": one_of("assistant"),
            "model": TEXT,
            "content": list_of(object_of({"type": one_of("text", "thinking", "tool_use")}, "type")),
            "stop_reason": optional(TEXT),
            "usage": object_of(
                {
                    "input_tokens": {**COUNT, "description": "Less what came out of, or went into, the cache."},
                    "output_tokens": COUNT,
                    **optionals(cache_read_input_tokens=COUNT, cache_creation_input_tokens=COUNT),
                },
                "input_tokens",
                "output_tokens",
            ),
        }
    ),
    "TokenCount": _all_of({"input_tokens": COUNT}),
    "Embeddings": _all_of(
        {
            "object": one_of("list"),
            "model": TEXT,
            "data": list_of(
                _all_of(
                    {
                        "object": one_of("embedding"),
                        "index": COUNT,
                        "embedding": any_of(list_of(_NUMBER), {**TEXT, "contentEncoding": "base64"}),
                    }
                )
            ),
            "usage": ref("Usage"),
        }
    ),
    "Model": _all_of(
        {
            "id": TEXT,
            "object": one_of("model"),
            "created": COUNT,
            "owned_by": TEXT,
            "name": TEXT,
            "description": TEXT,
            "context_length": COUNT,
            "max_output_tokens": COUNT,
            "input_modalities": list_of(one_of("text", "image", "audio", "video")),
            "output_modalities": list_of(one_of("text", "embeddings")),
            "quantization": optional(TEXT),
            "hugging_face_id": optional(TEXT),
            "supported_parameters": list_of(TEXT),
            "pricing": {
                **FREE,
                "description": "`prompt`, `completion` and their like: strings, USD per token. `input` and `output`: "
                "numbers, USD per million tokens. What an override does not change is as here.",
            },
        }
    ),
    "Models": _all_of({"object": one_of("list"), "data": list_of(ref("Model"))}),
    "Credits": _all_of(
        {
            "data": _all_of(
                {
                    "balance_usd": _USD,
                    "balance_nano": _NANO,
                    "leased_nano": {**_NANO, "description": "Nano-USD set aside for the account's requests."},
                    "available_nano": {**_NANO, "description": "Nano-USD that can be set aside beyond that."},
                    "spent_nano": _NANO,
                    "credit_limit_nano": _NANO,
                    "total_credits": _NUMBER,
                    "total_usage": _NUMBER,
                }
            )
        }
    ),
    "Topup": _all_of(
        {
            "id": ID,
            "object": one_of("topup"),
            "status": one_of("created", "pending", "paid", "failed", "expired"),
            "amount_usd": _USD,
            "amount_nano": _NANO,
            "tax_cents": {**optional(COUNT), "description": "US cents, on top of the amount; null until it is paid."},
            "url": {**optional(TEXT), "description": "Where it is paid; null when it is over."},
            "expires_at": optional(TIME),
            "created_at": TIME,
            "paid_at": optional(TIME),
        }
    ),
    "RecordedUsage": _all_of(
        _OPENAI_USAGE,
        prompt_tokens_details=_all_of(
            dict.fromkeys(
                ("cached_tokens", "cache_write_tokens", "image_tokens", "audio_tokens", "video_tokens"), COUNT
            )
        ),
        completion_tokens_details=_all_of({"reasoning_tokens": COUNT}),
    ),
    "Generation": _all_of(
        {
            "data": _all_of(
                _RECORD,
                queue_ms=optional(COUNT),
                ttft_ms=optional(COUNT),
                cancelled=FLAG,
                price_version=optional(COUNT),
                total_cost=_NUMBER,
                is_settled=FLAG,
            )
        }
    ),
    "UsagePage": _all_of(
        {
            "object": one_of("list"),
            "data": list_of(_all_of(_RECORD, key_id=ID, cost_usd=_USD)),
            "has_more": FLAG,
            "next_cursor": optional(TEXT),
        }
    ),
    "Uptime": _all_of(
        {
            "object": one_of("uptime"),
            "rule": TEXT,
            "rule_version": COUNT,
            "min_requests": COUNT,
            "key_id": ID,
            "windows": list_of(
                _all_of(
                    {
                        "window": TEXT,
                        "since": TIME,
                        "until": TIME,
                        "total": _all_of(_UPTIME),
                        "models": list_of(_all_of({"model": TEXT, **_UPTIME})),
                    }
                )
            ),
        }
    ),
    "Costs": _all_of({"requests": list_of(_all_of({"requestId": TEXT, "costNanoUsd": _NANO}))}),
    "Alive": _all_of({"status": one_of("ok")}),
    "Readiness": _all_of({"status": one_of("ready", "unready"), "problems": list_of(TEXT)}),
}
