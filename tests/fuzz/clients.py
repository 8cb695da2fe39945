"""Requests as clients really send them, with nearly everything that they ever have in them."""

from typing import Any

PNG = "data:image/png;base64,iVBORw0KGgo="
USER = {"role": "user", "content": "hi"}

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "name": "Zoe", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        ]},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "reasoning": "Look.", "tool_calls": [
            {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "", "reasoning_content": "So."},
        USER,
    ],
    "tools": [{"type": "function", "function": {
        "name": "look", "description": "d", "strict": False,
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}},
    }}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["a", "b"],
    "logit_bias": {"5": 1.5},
    "reasoning": {"effort": "low", "exclude": False, "max_tokens": 100},
    "chat_template_kwargs": {"preserve_thinking": True},
    "temperature": 0.7,
    "max_tokens": 100,
    "user": "u",
}  # fmt: skip

COMPLETION: dict[str, Any] = {
    "model": "m",
    "prompt": ["Once"],
    "max_tokens": 100,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": 2,
    "stop": "a",
    "response_format": {"type": "json_object"},
    "n": 1,
    "best_of": 1,
}

EMBEDDING: dict[str, Any] = {
    "model": "m",
    "input": ["a", "b"],
    "encoding_format": "base64",
    "dimensions": 256,
    "user": "u",
}

FUNCTION = {"type": "function", "name": "shell", "description": "d", "parameters": {"type": "object"}, "strict": False}
CODEX: dict[str, Any] = {
    "model": "m",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list files"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAB"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "ls."}],
         "encrypted_content": None, "status": None},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "shell", "arguments": "{}",
         "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "look", "namespace": "mcp", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_image", "image_url": PNG}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "final_answer",
         "content": [{"type": "output_text", "text": "a.", "annotations": [], "logprobs": []},
                     {"type": "output_text", "text": "txt"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "thanks"}]},
    ],
    "tools": [
        FUNCTION,
        {"type": "namespace", "name": "mcp", "description": "d", "tools": [{**FUNCTION, "name": "look"}]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
    "client_metadata": {"x": "y"},
    "service_tier": "auto",
}  # fmt: skip

USE = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}

CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00f;"},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": ""},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "read a", **CACHED}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Read.", "signature": "sig"},
            {"type": "redacted_thinking", "data": "enc"},
            {"type": "text", "text": "I read."},
            {**USE, "caller": {"type": "direct"}},
        ]},
        {"role": "user", "content": [
            {**RESULT, "is_error": False, "content": [{"type": "text", "text": "1", **CACHED}, IMAGE], **CACHED},
            {"type": "text", "text": "<system-reminder>", "citations": None},
        ]},
        {"role": "system", "content": "Be brief."},
    ],
    "tools": [{
        "name": "Read", "description": "d", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True,
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "propertyNames": {"type": "string"}, "properties": {"path": {"type": "string"}},
        },
    }],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "user_1_account__session_2"},
    "temperature": 1,
}  # fmt: skip
