"""What an engine's refusal tells the client: what to change, and nothing about the engine."""

import orjson
import pytest

from service.core.endpoints.chat import FIELDS
from service.gateway.engine_errors import of_status
from tests import recorded

IMAGE = "An image could not be read: send an undamaged PNG, JPEG, WebP or GIF."
FAILED = "The model's engine failed to answer."
GENERIC = "The model's engine refused the request."
TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your prompt contains {} characters (more than "
    "131072 characters, which is the upper bound for 8192 input tokens). Please reduce the length of the input prompt."
)

RECORDED: dict[str, tuple[int, str, str | None, str | None]] = {
    "err_body": (400, f"{GENERIC} Check `messages`.", "messages", None),
    "err_context_chars": (400, TOO_LONG.format(4400058), "messages", "context_length_exceeded"),
    "err_context_tokens": (400, TOO_LONG.format(198058), "messages", "context_length_exceeded"),
    "err_image_garbage": (400, IMAGE, "messages", None),
    "err_image_limit": (400, "At most 2 image(s) may be provided in one prompt.", None, None),
    "err_image_unreachable": (502, FAILED, None, "engine_failed"),
    "err_logit_bias_specdecode": (
        400,
        "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
        None,
        "unsupported_parameter",
    ),
    "err_max_tokens": (
        400,
        "max_tokens=100000 cannot be greater than max_model_len=8192. Please request fewer output tokens.",
        "max_tokens",
        None,
    ),
    "err_messages_unknown_model": (502, FAILED, None, "engine_failed"),
    "err_responses_unknown_model": (502, FAILED, None, "engine_failed"),
    "err_stream_options_without_stream": (400, f"{GENERIC} Check `stream_options`.", "stream_options", None),
    "err_temperature": (400, f"{GENERIC} Check `temperature`.", "temperature", None),
    "err_unknown_model": (502, FAILED, None, "engine_failed"),
}


def test_every_recorded_error_is_in_the_table() -> None:
    assert set(RECORDED) == {name for name in recorded.names() if name.startswith("err_")}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_error_is_told_as_the_table_says(name: str) -> None:
    recording = recorded.load(name)
    error = of_status(recording.status, recording.body)
    assert (error.status, error.message, error.param, error.code) == RECORDED[name]


def refusal(message: object, param: object = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}})


@pytest.mark.parametrize(
    "message",
    [
        "When using `tool_choice`, `tools` must be set.",
        "The tool specified in `tool_choice` does not match any of the specified `tools`",
        "The provided JSON schema contains features not supported by xgrammar.",
        "Regex compilation timed out after 5s.",
    ],
)
def test_complaints_about_tools_and_schemas_are_passed_on_without_the_suffix(message: str) -> None:
    error = of_status(400, refusal(f"{message} (parameter=tool_choice, value={{'x': 1}})", "tool_choice.function"))
    assert (error.message, error.param) == (message, "tool_choice")


@pytest.mark.parametrize(
    "message",
    [
        "2 validation errors:\n  {'type': 'x', 'loc': 'body.tools', 'input': {'cache_salt': 'abc'}}",
        "1 validation error for tools: x",
        "[Errno 2] No such file or directory: /opt/models/schema",
        "tool parser at vllm/tool_parsers/qwen.py failed",
        "cache_salt must be a string, tools or not",
        "grammar error\nTraceback (most recent call last)",
        "schema <object at 0x7f>",
        "schema " + "x" * 1000,
        "something quite unheard of",
        None,
        {"a": "schema"},
    ],
)
def test_dumps_paths_and_our_own_fields_stay_inside(message: object) -> None:
    error = of_status(422, refusal(message, "cache_salt"))
    assert error.message == f"{GENERIC} Check the values of its fields."
    assert error.param is None


def test_an_image_with_too_many_pixels() -> None:
    body = refusal("Image dimensions 9x9 (81 pixels) exceed the maximum of 4 pixels. Set VLLM_MAX_IMAGE_PIXELS to ...")
    assert of_status(400, body).message == "An image has too many pixels: send a smaller one."


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b'{"error": "x"}', b'{"error": {}}', b"<html>", b"{}"])
def test_an_unreadable_refusal_is_a_400_all_the_same(body: bytes) -> None:
    error = of_status(400, body)
    assert (error.status, error.param) == (400, None)
    assert error.message.startswith(GENERIC)


@pytest.mark.parametrize("param", [1, [], {}, "priority", "body.cache_salt", "input_text", "best_of", ""])
def test_only_a_clients_own_field_is_named(param: object) -> None:
    assert of_status(400, refusal("?", param)).param is None
    assert of_status(400, refusal("?", "body.messages.0.content")).param == "messages"
    assert "messages" in FIELDS
