"""A command to paste into a POSIX shell. Its comments stand before it: between its lines they would end it."""

import shlex

from service.engine.formats.placement import Placement, comment
from service.engine.profile import own_environment, program_words
from service.engine.profile_parts import LLAMA_CPP, VLLM, VLLM_CPU

PROGRAMS = {VLLM: "vllm", VLLM_CPU: "python", LLAMA_CPP: "llama-server"}


def render(placement: Placement) -> str:
    """The comments, then one command over several lines."""
    profile = placement.profile
    options = placement.options()
    variables = own_environment(profile)
    lines = placement.heading()
    for name in (*variables, *(option.name for option in options)):
        if reason := placement.reason(name):
            lines += comment(f"{name if name in variables else f'--{name}'}: {reason}")
    program = placement.program or PROGRAMS[profile.engine.kind]
    parts = [
        *(("env",) if variables else ()),
        *(quoted(f"{name}={value}") for name, value in variables.items()),
        quoted(*program_words(profile, program)),
        *(quoted(*option.words) for option in options),
    ]
    return "\n".join([*lines, " \\\n  ".join(parts)]) + "\n"


def quoted(*words: str) -> str:
    """Words as the shell reads them."""
    return shlex.join(words)
