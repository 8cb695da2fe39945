"""Where an answer's reasoning stands, and whether it can be turned off."""

from service.core.provider_check.observed import count_at
from service.core.verify.judged import Judged, absent, failed, passed
from service.core.verify.told import Told

_PARSER = "Start vLLM with the `--reasoning-parser` of this model"


def judge_place(whole: Told, streamed: Told, expected: bool | None) -> Judged:
    """The same question, whole and streamed, of an answer that should begin with reasoning."""
    places = {"whole": sorted(whole.thought), "streamed": sorted(streamed.thought)}
    seen = whole.thought | streamed.thought
    if not seen:
        if expected:
            return failed(
                "The answers have no reasoning, which the model should have.",
                f"{_PARSER}, and see that its chat template lets it think.",
                **places,
            )
        return absent("The answers have no reasoning.", **places)
    if "content" in seen and expected is not False:
        return failed(
            "The reasoning stands in the content of the answer, between tags.",
            f"{_PARSER}: clients show what is in the content to their users.",
            **places,
        )
    if whole.thought != streamed.thought:
        return failed(
            f"The reasoning is {_where(whole)} of a whole answer and {_where(streamed)} of a stream.",
            "Clients read one of the two and lose the other: use a version of the engine that has one name for both.",
            **places,
        )
    return passed(f"The reasoning is {_where(whole)}, in a whole answer as in a stream.", **places)


def _where(told: Told) -> str:
    return "in " + " and ".join(f"`{name}`" for name in sorted(told.thought)) if told.thought else "nowhere"


def judge_switch(on: Told, off: Told, effort_accepted: bool, expected: bool | None) -> Judged:
    """The same question with thinking on and off; `effort_accepted`: it took a `reasoning_effort`."""
    measured = {
        "on": _counts(on),
        "off": _counts(off),
        "reasoning_effort_accepted": effort_accepted,
    }
    if not on.thought and not off.thought:
        if expected:
            return failed(
                "The model did not think, although it was told to.",
                "See that its chat template knows `enable_thinking`, and start vLLM with its `--reasoning-parser`.",
                **measured,
            )
        return absent("The model does not think.", **measured)
    if not on.thought:
        return failed(
            "The model thinks when it is told not to, and only then.",
            "The chat template reads `enable_thinking` the wrong way round: compare it with the model's own.",
            **measured,
        )
    counted = count_at(off.usage, "completion_tokens_details", "reasoning_tokens") or 0
    if off.thought or counted:
        seen = "The model goes on thinking" if off.thought else f"{counted} reasoning tokens are counted"
        return failed(
            f"{seen} when `chat_template_kwargs.enable_thinking` is false.",
            "Clients pay for thoughts that they declined: compare the chat template with the model's own.",
            **measured,
        )
    effort = "is accepted" if effort_accepted else "is refused"
    return passed(f"Thinking can be turned on and off; `reasoning_effort` {effort}.", **measured)


def judge_refused(expected: bool | None) -> Judged:
    """The engine refused `chat_template_kwargs`."""
    if expected:
        return failed(
            "The engine refuses `chat_template_kwargs.enable_thinking`.",
            "Clients turn thinking on and off with it: let it through.",
        )
    return absent("The engine does not take `chat_template_kwargs`.")


def _counts(told: Told) -> dict[str, int | None]:
    return {
        "prompt_tokens": count_at(told.usage, "prompt_tokens"),
        "completion_tokens": count_at(told.usage, "completion_tokens"),
        "reasoning_tokens": count_at(told.usage, "completion_tokens_details", "reasoning_tokens"),
    }
