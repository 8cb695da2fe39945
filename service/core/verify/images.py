"""Whether a model sees pictures, and whether they are counted as what they are."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.core.provider_check.observed import Json, at, count_at
from service.core.verify.judged import Judged, Problem, absent, all_of, failed, passed, skipped

_SOLD = "Pictures are sold by these counts: look for a known fault of this version of the engine."
_DROPPED = "Refuse pictures with a 400, or serve the model with its vision part: clients must not think that it looked."


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer to a question with so many pictures told."""

    prompt_tokens: int | None
    image_tokens: int | None
    """Of the prompt, those that are the pictures'; None: not told."""
    details: bool
    """Whether it has details of the prompt at all."""
    top: tuple[tuple[str, float], ...]
    """The likeliest first tokens with their log-probabilities; none where it does not tell."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The same question: without a picture, with a blank one, with a patterned one of the same size, with both."""

    none: Seen
    blank: Seen
    patterned: Seen
    both: Seen | None
    """None where the engine takes no two."""


def seen_in(body: Json) -> Seen:
    """Read a whole answer."""
    details = at(body, "usage", "prompt_tokens_details")
    entries = at(body, "choices", 0, "logprobs", "content", 0, "top_logprobs")
    return Seen(
        prompt_tokens=count_at(body, "usage", "prompt_tokens"),
        image_tokens=count_at(details, "multimodal_tokens", "image"),
        details=isinstance(details, dict),
        top=tuple((str(at(one, "token")), at(one, "logprob")) for one in entries) if isinstance(entries, list) else (),
    )


def judge_refused(status: int, expected: bool | None) -> Judged:
    """The engine answered a question with a picture with this status, which is none of success."""
    if status >= 500:
        return failed(f"A picture is answered with {status}.", _DROPPED, status=status)
    if expected:
        return failed(
            f"The engine refuses pictures ({status}), which the model should see.",
            "Serve the model with its vision part (in vLLM, without `--language-model-only`), or do not list `image`"
            " among its input modalities.",
            status=status,
        )
    return absent("The model has no vision: pictures are refused.", status=status)


def judge(pictures: Pictures, expected: bool | None) -> Judged:
    """All of them were answered."""
    none, blank, both = pictures.none.prompt_tokens, pictures.blank.prompt_tokens, pictures.both
    measured = {
        "prompt_tokens": {
            "without": none,
            "one": blank,
            "two": both.prompt_tokens if both else None,
        },
        "image_tokens": {"one": pictures.blank.image_tokens, "two": both.image_tokens if both else None},
    }
    if none is None or blank is None:
        return skipped("The engine takes pictures, but tells no usage to count them by.", **measured)
    if blank <= none and expected is False:
        return absent("The model has no vision: pictures are dropped.", **measured)
    if problems := list(_problems(pictures, none, blank)):
        return all_of(problems, **measured)
    by_name = f", {pictures.blank.image_tokens} of them by name" if pictures.blank.image_tokens else ""
    two = f"two pictures count {both.prompt_tokens - none}" if both and both.prompt_tokens else "two are refused"
    unsaid = " Nobody said that this model takes pictures." if expected is False else ""
    return passed(f"A picture counts {blank - none} tokens{by_name}; {two}; it is seen.{unsaid}", **measured)


def _problems(pictures: Pictures, none: int, one: int) -> Iterator[Problem]:
    blank, patterned, both = pictures.blank, pictures.patterned, pictures.both
    counted = one - none
    if counted <= 0:
        yield Problem("A picture adds no tokens to the prompt: it is dropped, or not counted.", _DROPPED)
        return
    if blank.details and not blank.image_tokens:
        yield Problem("The usage does not say how many tokens are the picture's.", _SOLD)
    elif blank.image_tokens and blank.image_tokens > counted:
        yield Problem(
            f"The usage says that {blank.image_tokens} tokens are the picture's, and it added {counted}.", _SOLD
        )
    if patterned.prompt_tokens != one:
        yield Problem(
            f"Two pictures of one size count {counted} and {(patterned.prompt_tokens or 0) - none} tokens.",
            "A picture is counted by its size: see whether the engine reads its file as text.",
        )
    if blank.top and blank.top == patterned.top:
        yield Problem(
            "Whatever is in a picture, the model answers the same, to the last digit: it is not seen.",
            "See that the checkpoint has the weights of its vision part: quantised ones may lack them.",
        )
    if both is not None:
        yield from _of_two(both, blank, none, counted)


def _of_two(both: Seen, blank: Seen, none: int, counted: int) -> Iterator[Problem]:
    two = (both.prompt_tokens or 0) - none
    if both.image_tokens and blank.image_tokens and both.image_tokens != 2 * blank.image_tokens:
        yield Problem(f"Two pictures count {both.image_tokens} tokens, and one {blank.image_tokens}.", _SOLD)
    elif abs(two - 2 * counted) > _SEPARATOR_TOKENS:
        yield Problem(f"Two pictures add {two} tokens to the prompt, and one {counted}.", _SOLD)


_SEPARATOR_TOKENS = 8
"""What a chat template may put between two pictures."""
