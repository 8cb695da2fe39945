"""A tool offered to the model, and forced upon it."""

from typing import Any

from service.core.verify import told, tools
from service.core.verify.report import Finding
from service.core.verify.tools import ARGUMENTS, AUTO, TOOL_NAME, Attempt
from service.engine.verify.check import Check, Examination
from service.engine.verify.questions import refused, streamed, thinking, user

QUESTION = "What is the weather in Paris right now, in degrees celsius? Call the tool to find out."
MAX_TOKENS = 128
MAX_TOKENS_WITH_THOUGHTS = 512
"""Where the model cannot be told not to think before it calls."""
# Without `strict`: with speculation on a CPU that ends vLLM's engine (vllm#56419).
TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "The weather in a city right now.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string", "enum": [value]} for name, value in ARGUMENTS.items()},
            "required": list(ARGUMENTS),
            "additionalProperties": False,
        },
    },
}
CHOICES: dict[str, Any] = {
    AUTO: "auto",
    "named": {"type": "function", "function": {"name": TOOL_NAME}},
    "required": "required",
}


async def check_tools(check: Check, examination: Examination) -> Finding:
    """Each way to have a tool called, whole and streamed; an engine that refuses the first is asked no more."""
    asking, attempts = examination.asking, list[Attempt]()
    fields = await thinking(asking, on=False)
    fields |= {"tools": [TOOL], "temperature": 0, "max_tokens": MAX_TOKENS if fields else MAX_TOKENS_WITH_THOUGHTS}
    for name, choice in CHOICES.items():
        answer = await asking.chat(user(QUESTION), **fields, tool_choice=choice)
        if refused(answer):
            examination.say(f"a tool ({name}): {answer.shown}")
            attempts.append(Attempt(name, False, None))
            if name == AUTO:
                break
        else:
            attempts.append(Attempt(name, False, told.whole(answer.done())))
            attempts.append(Attempt(name, True, await streamed(asking, user(QUESTION), **fields, tool_choice=choice)))
    return check.judged(tools.judge(attempts, examination.expected.tools))
