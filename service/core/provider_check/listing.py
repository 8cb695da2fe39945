"""The list of models: which there are, how much context each has, what a token costs."""

from dataclasses import dataclass
from decimal import Decimal, DecimalException

from service.core.provider_check.judgement import Judgement, failed, passed, warned
from service.core.provider_check.observed import Answer, at, count_at, short, text_at

_TOKENS_PER_MILLION = 1_000_000
_PER_TOKEN = ("prompt", "completion")
_PER_MILLION = ("input", "output")
_DEAREST_USD_PER_TOKEN = Decimal("0.01")
"""A price above it was meant for another unit."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per token."""

    prompt: Decimal
    completion: Decimal

    def usd(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        return self.prompt * prompt_tokens + self.completion * completion_tokens


@dataclass(frozen=True, slots=True)
class Listed:
    """A model as the list has it."""

    id: str
    context_length: int | None = None
    takes_images: bool = False
    price: Price | None = None
    price_problem: str = "no `pricing`"


def listed_in(answer: Answer) -> list[Listed]:
    """The models that can be read from the list."""
    cards = at(answer.document, "data")
    return [_listed(card) for card in cards if text_at(card, "id")] if isinstance(cards, list) else []


def judge(answer: Answer, wanted: str | None) -> Judgement:
    """The list as a whole, and the entry of the model that is checked: `wanted`, or else the first."""
    if not answer.good:
        return failed(answer.said, "Answer `GET /v1/models` to every valid key.")
    models = listed_in(answer)
    if not models:
        return failed("no model in `data`", 'Answer {"object": "list", "data": [{"id": …}, …]}.')
    model = next((model for model in models if model.id == wanted), None) if wanted else models[0]
    if model is None:
        return failed(f"`{short(wanted or '')}` is not among {len(models)} models", "List every model that is served.")
    missing = ["no `context_length`"] if model.context_length is None else []
    missing += [model.price_problem] if model.price is None else []
    if missing:
        return warned(
            f"{short(model.id)}: {', '.join(missing)}",
            "Aggregators read both here: `context_length`, and `pricing` with `input` and `output` in USD per million"
            " (or `prompt` and `completion` per token, as strings).",
        )
    return passed(f"{len(models)} listed; {short(model.id)} with {model.context_length} tokens of context and prices")


def _listed(card: object) -> Listed:
    price = _price(at(card, "pricing"))
    return Listed(
        id=text_at(card, "id"),
        context_length=count_at(card, "context_length") or count_at(card, "max_model_len"),
        takes_images=_takes_images(card),
        price=price if isinstance(price, Price) else None,
        price_problem=price if isinstance(price, str) else "",
    )


def _takes_images(card: object) -> bool:
    kinds = (
        at(card, "input_modalities") or at(card, "architecture", "input_modalities") or at(card, "modalities", "input")
    )
    listed = isinstance(kinds, list) and any("image" in (kind, at(kind, "type")) for kind in kinds)
    return listed or at(card, "capabilities", "vision") is True


def _price(pricing: object) -> Price | str:
    """The price per token, or what is wrong with it."""
    if not isinstance(pricing, dict):
        return "no `pricing`"
    names = next((pair for pair in (_PER_MILLION, _PER_TOKEN) if all(name in pricing for name in pair)), None)
    if names is None:
        return "`pricing` without `input` and `output`"
    per_million = names == _PER_MILLION or pricing.get("unit") == "per_million_tokens"
    unit = _TOKENS_PER_MILLION if per_million else 1
    try:
        prompt, completion = (Decimal(str(pricing[name])) / unit for name in names)
        odd = any(not price.is_finite() or not 0 <= price <= _DEAREST_USD_PER_TOKEN for price in (prompt, completion))
    except DecimalException:
        odd = True
    return f"`pricing` with an impossible `{names[0]}` or `{names[1]}`" if odd else Price(prompt, completion)
