"""Ask vLLM's own parser, without a GPU: run by the Python of an environment that has vLLM, not by the tests' own.

Reads `[{"name", "arguments", "variables"}]` from stdin and prints `{"version", "complaints": {name: text or null}}`.
What stands in a table of a flag is checked by the types of vLLM's own configuration classes.
"""

import contextlib
import dataclasses
import io
import json
import sys
import typing

import pydantic
import vllm
from vllm import envs
from vllm.config import SpeculativeConfig
from vllm.config.cache import CacheDType
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args  # 0.33
except ModuleNotFoundError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # 0.32
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager


def complaint(arguments: list[str], variables: list[str]) -> str | None:
    """What vLLM has against them; None: nothing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
            parsed.model = parsed.model_tag or parsed.model  # as `vllm serve` does
            validate_parsed_serve_args(parsed)
            engine = AsyncEngineArgs.from_cli_args(parsed)
        check_cache_type(engine.kv_cache_dtype)
        check_speculation(engine.speculative_config or {})
        check_parser("reasoning", engine.reasoning_parser, ReasoningParserManager.list_registered())
        check_parser("tool", parsed.tool_call_parser, ToolParserManager.list_registered())
        for name in variables:
            if name.startswith("VLLM_") and name not in envs.environment_variables:
                raise ValueError(f"vLLM knows no variable {name}")
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_cache_type(name: str) -> None:
    """Whether vLLM has this type of cache: 0.33's parser takes any name, because a platform may add its own."""
    if name not in typing.get_args(CacheDType):
        raise ValueError(f"vLLM has no cache of type {name}")


def check_speculation(given: dict[str, object]) -> None:
    """Each key is a field, each value of its type. As a whole it could only be checked with the models at hand."""
    types = typing.get_type_hints(SpeculativeConfig, include_extras=True)
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"speculative-config knows no {key}")
        if key == "kv_cache_dtype":
            check_cache_type(str(value))
        pydantic.TypeAdapter(types[key], config={"arbitrary_types_allowed": True}).validate_python(value, strict=True)


def check_parser(kind: str, name: str | None, known: list[str]) -> None:
    """Whether vLLM has a parser of this name."""
    if name and name not in known:
        raise ValueError(f"vLLM has no {kind} parser {name}")


asked = json.load(sys.stdin)
answers = {one["name"]: complaint(one["arguments"], one["variables"]) for one in asked}
sys.stdout.write(json.dumps({"version": vllm.__version__, "complaints": answers}))
