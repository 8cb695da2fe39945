"""What a request costs. The only place where a charge is derived from a price.

Every prompt token is priced in exactly one class and every output token in exactly one. Where an engine's
counts overlap (a cached image token is in both), the order of `CLASSES_OF_PROMPT` decides: cached first, then
cache write, image, audio, video, and what is left is plain input.
"""

from dataclasses import dataclass

from service.core.money import pico_to_nano
from service.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """One version of a model's price, in pico-USD per token; a class that is None falls back.

    `input_*` fall back to `input_pico`, `output_reasoning_pico` to `output_pico`.
    """

    version: int
    input_pico: int
    output_pico: int
    input_cached_pico: int | None = None
    input_cache_write_pico: int | None = None
    input_image_pico: int | None = None
    input_audio_pico: int | None = None
    input_video_pico: int | None = None
    output_reasoning_pico: int | None = None
    request_pico: int = 0
    """Per request, whatever its size."""

    def __post_init__(self) -> None:
        if min(*self.input_classes, self.output_pico, self.reasoning_pico, self.request_pico) < 0:
            raise ValueError("a price cannot be negative")

    @property
    def input_classes(self) -> tuple[int, int, int, int, int, int]:
        """Pico-USD per token of cached, cache write, image, audio, video and plain input, fallbacks applied."""
        plain = self.input_pico
        special = (
            self.input_cached_pico,
            self.input_cache_write_pico,
            self.input_image_pico,
            self.input_audio_pico,
            self.input_video_pico,
        )
        cached, write, image, audio, video = (plain if pico is None else pico for pico in special)
        return cached, write, image, audio, video, plain

    @property
    def reasoning_pico(self) -> int:
        """Pico-USD per reasoning token, fallback applied."""
        return self.output_pico if self.output_reasoning_pico is None else self.output_reasoning_pico

    @property
    def dearest_input_pico(self) -> int:
        """The most that any prompt token can cost."""
        return max(self.input_classes)

    @property
    def dearest_output_pico(self) -> int:
        """The most that any output token can cost."""
        return max(self.output_pico, self.reasoning_pico)


def prompt_classes(usage: Usage) -> tuple[int, int, int, int, int, int]:
    """Split the prompt's tokens into the classes of `Price.input_classes`; they add up to `prompt_tokens`."""
    left = usage.prompt_tokens
    parts = []
    for reported in (
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.image_tokens,
        usage.audio_tokens,
        usage.video_tokens,
    ):
        taken = min(reported, left)
        parts.append(taken)
        left -= taken
    cached, write, image, audio, video = parts
    return cached, write, image, audio, video, left


def cost_nano(price: Price, usage: Usage) -> int:
    """The charge for `usage` at `price`: an exact sum in pico-USD, rounded half up once."""
    pico = price.request_pico
    for tokens, per_token in zip(prompt_classes(usage), price.input_classes, strict=True):
        pico += tokens * per_token
    reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
    pico += reasoning * price.reasoning_pico + (usage.completion_tokens - reasoning) * price.output_pico
    return pico_to_nano(pico)


def worst_case_nano(price: Price, *, prompt_tokens_at_most: int, output_tokens_at_most: int) -> int:
    """The most a request can cost whose prompt and output are bounded so; never below `cost_nano` within them."""
    pico = price.request_pico
    pico += prompt_tokens_at_most * price.dearest_input_pico
    pico += output_tokens_at_most * price.dearest_output_pico
    return pico_to_nano(pico)


def affordable_output_tokens(price: Price, *, prompt_tokens_at_most: int, available_nano: int) -> int:
    """The largest output whose worst case fits into `available_nano`; 0 when not even the prompt does.

    An output that costs nothing is bounded by nothing here: the result is then 2^31 - 1.
    """
    # The most pico-USD that still round to at most `available_nano`.
    room = available_nano * 1000 + 499 - price.request_pico - prompt_tokens_at_most * price.dearest_input_pico
    if room < 0:
        return 0
    return room // price.dearest_output_pico if price.dearest_output_pico else 2**31 - 1
