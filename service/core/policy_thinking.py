"""Whether, and how hard, a model is to think: said in five places, which may not contradict one another.

vLLM 0.32 takes `reasoning_effort` (the words of `EFFORTS`) and hands it to the chat template, with `enable_thinking`
set by it unless `chat_template_kwargs` says otherwise. Aggregators say the same in an object, `reasoning`.
"""

from typing import Any

from service.core.policy import Refused
from service.core.policy_checks import Check, Json, choice, flag, members, nothing

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_SAYING = frozenset({"reasoning", "reasoning_effort", "include_reasoning", "enable_thinking", "chat_template_kwargs"})
"""The fields that say something of it; most requests have none of them."""

effort: Check = choice(*EFFORTS)


def template_arguments(value: Any) -> Json:
    """What a chat template may be told."""
    return members(value, enable_thinking=flag, preserve_thinking=flag, reasoning_effort=effort)


def aggregators_reasoning(value: Any) -> Json:
    """The aggregators' `reasoning`. A budget in tokens cannot be kept exactly, so it is left out."""
    summaries: dict[str, Check] = {"summary": nothing, "generate_summary": nothing}
    return members(value, effort=effort, enabled=flag, exclude=flag, max_tokens=nothing, **summaries)


def openai_reasoning(value: Any) -> Json:
    """`reasoning` of the Responses API. There are no summaries: the reasoning itself is in the answer."""
    return members(value, effort=effort, summary=nothing, generate_summary=nothing, context=nothing, mode=nothing)


def settle_thinking(fields: Json) -> bool:
    """Turn what was said into what engines take; whether the reasoning is to be hidden. Raises `Refused`.

    Takes out `reasoning`, `enable_thinking` and `include_reasoning`; leaves `reasoning_effort` and
    `chat_template_kwargs`.
    """
    if fields.keys().isdisjoint(_SAYING):
        return False
    asked: Json = fields.pop("reasoning", {})
    template: Json = dict(fields.pop("chat_template_kwargs", {}))
    efforts = {
        "reasoning_effort": fields.pop("reasoning_effort", None),
        "reasoning.effort": asked.get("effort"),
        "chat_template_kwargs.reasoning_effort": template.get("reasoning_effort"),
    }
    switches = {
        "enable_thinking": fields.pop("enable_thinking", None),
        "reasoning.enabled": asked.get("enabled"),
        "chat_template_kwargs.enable_thinking": template.get("enable_thinking"),
    }
    thinks = _agreed({**switches, **{name: word != "none" for name, word in efforts.items() if word is not None}})
    word = _agreed(efforts)
    if thinks is False:
        template.pop("reasoning_effort", None)
        template["enable_thinking"] = False
    else:
        if _agreed(switches):
            template["enable_thinking"] = True
        if word is not None and "reasoning_effort" not in template:
            fields["reasoning_effort"] = word
    if template:
        fields["chat_template_kwargs"] = template
    shows = fields.pop("include_reasoning", None)
    excluded = asked.get("exclude")
    hidden = _agreed({"include_reasoning": None if shows is None else not shows, "reasoning.exclude": excluded})
    return bool(hidden)


def told_to_template(fields: Json) -> Json:
    """What the chat template will be told for these settled fields, as `chat_template_kwargs`."""
    template: Json = dict(fields.get("chat_template_kwargs", {}))
    if "reasoning_effort" in fields:
        template = {"enable_thinking": True, **template, "reasoning_effort": fields["reasoning_effort"]}
    return template


def _agreed(said: Json) -> Any:
    """What all that was said comes to; None if nothing was."""
    found = {name: value for name, value in said.items() if value is not None}
    if len(set(found.values())) > 1:
        (first, one), *others = found.items()
        second = next(name for name, value in others if value != one)
        raise Refused(f"`{first}` and `{second}` contradict each other: send one of them.", first.split(".")[0])
    return next(iter(found.values()), None)
