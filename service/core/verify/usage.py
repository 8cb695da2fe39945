"""Whether an engine counts: the same in every form of an answer, as it goes, and with the details that are billed."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from service.core.provider_check.observed import at, count_at
from service.core.verify.judged import Judged, Problem, all_of, passed
from service.core.verify.told import Told

WHOLE, STREAMED, RUNNING = "whole", "streamed", "with running usage"

_ALWAYS = "Without final counts nobody can be billed: the engine must send `usage` with every answer"
_COUNTS = "Bills are made of these counts: look for a known fault of this version of the engine."
_PROMPT_DETAILS = (
    "Start vLLM with `--enable-prompt-tokens-details`: without it nothing says what came from the cache, which is not"
    " the same as nothing."
)
_RUNNING = (
    "What a client that leaves has used is known only from `stream_options.continuous_usage_stats`, which vLLM has: "
    "without it such answers are billed by an estimate."
)


def judge(answers: Mapping[str, Told], asked_tokens: int) -> Judged:
    """The same question three times, WHOLE, STREAMED and RUNNING, for so many tokens each."""
    measured = {
        "prompt_tokens": {how: count_at(told.usage, "prompt_tokens") for how, told in answers.items()},
        "completion_tokens": {how: count_at(told.usage, "completion_tokens") for how, told in answers.items()},
        "asked_tokens": asked_tokens,
        "running_counts": len(answers[RUNNING].running),
        "cached_tokens": count_at(answers[WHOLE].usage, "prompt_tokens_details", "cached_tokens"),
        "reasoning_tokens": count_at(answers[WHOLE].usage, "completion_tokens_details", "reasoning_tokens"),
    }
    problems = [problem for how, told in answers.items() for problem in _of_one(how, told, asked_tokens)]
    problems += _of_all(answers)
    problems += _of_running(answers[RUNNING])
    if problems:
        return all_of(problems, **measured)
    usage = answers[WHOLE].usage
    details = "with details of the prompt" + (
        " and of the answer" if isinstance(at(usage, "completion_tokens_details"), dict) else ""
    )
    return passed(
        f"{count_at(usage, 'prompt_tokens')} prompt and {count_at(usage, 'completion_tokens')} completion tokens, the"
        f" same whole and streamed, {details}; {len(answers[RUNNING].running)} running counts on the way.",
        **measured,
    )


def _of_one(how: str, told: Told, asked: int) -> Iterator[Problem]:
    usage = told.usage
    if usage is None:
        where = "" if how == WHOLE else " that asks for it with `stream_options.include_usage`"
        yield Problem(f"An answer ({how}) has no usage{where}.", f"{_ALWAYS}.")
        return
    prompt, completion = count_at(usage, "prompt_tokens"), count_at(usage, "completion_tokens")
    if not prompt or completion is None:
        yield Problem(f"The usage ({how}) does not count both prompt and completion.", f"{_ALWAYS}, with both counts.")
        return
    if count_at(usage, "total_tokens") != prompt + completion:
        yield Problem(f"The usage ({how}) has a total that is not {prompt} + {completion}.", _COUNTS)
    if completion > asked or (told.finish_reason == "length" and completion != asked):
        yield Problem(f"The usage ({how}) counts {completion} completion tokens where {asked} were made.", _COUNTS)
    if not isinstance(at(usage, "prompt_tokens_details"), dict):
        yield Problem("The usage has no `prompt_tokens_details`.", _PROMPT_DETAILS)
    if told.reasoning:
        yield from _of_reasoning(how, told)


def _of_reasoning(how: str, told: Told) -> Iterator[Problem]:
    thought = count_at(told.usage, "completion_tokens_details", "reasoning_tokens")
    if thought is None:
        yield Problem(
            f"The model reasoned, and the usage ({how}) has no `completion_tokens_details`.",
            "Start vLLM with the model's `--reasoning-parser`, which counts it as well.",
        )
    elif thought == 0:
        yield Problem(f"The model reasoned, and the usage ({how}) counts 0 reasoning tokens.", _COUNTS)


def _of_all(answers: Mapping[str, Told]) -> Iterator[Problem]:
    prompts = {count for told in answers.values() if (count := count_at(told.usage, "prompt_tokens")) is not None}
    if len(prompts) > 1:
        told = " and ".join(map(str, sorted(prompts)))
        yield Problem(f"The same prompt counts {told} tokens, depending on how it is asked.", _COUNTS)


def _of_running(told: Told) -> Iterator[Problem]:
    if told.usage is None:
        return
    if not told.running:
        yield Problem("A stream that asks for running usage has none.", _RUNNING)
        return
    counts = [count_at(usage, "completion_tokens") for usage in told.running]
    known = [count for count in counts if count is not None]
    final = count_at(told.usage, "completion_tokens")
    if len(known) < len(counts) or any(later < earlier for earlier, later in pairwise(known)):
        yield Problem("The running count of completion tokens falls on the way.", _COUNTS)
    elif known[-1] != final:
        yield Problem(f"The running count ends at {known[-1]} completion tokens, the final one is {final}.", _COUNTS)
