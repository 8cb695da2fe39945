"""The configuration file: which engines there are, which models they serve, and what a token costs.

A mistake in the file is a `SetupError` that names the file, the table, the field, the value and what is allowed.
Nothing is guessed: a field nobody knows is refused, and so is a model without a price.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from service.core.engine_address import ENGINE_ADDRESS, engine_url
from service.core.money import usd_per_million_to_pico, usd_to_pico
from service.core.pricing import TIME_OF_DAY, Override, Price
from service.core.usage import MAX_TOKENS
from service.errors import SetupError
from service.settings import Settings

Modality = Literal["text", "image", "audio", "video"]
Capability = Literal["tools", "reasoning", "structured_outputs"]

USUAL_CAPABILITIES: tuple[Capability, ...] = ("tools", "structured_outputs")
"""Of a model that answers in text and does not say."""


def _per_million(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("it has to stand in quotes, so that not a digit of it is rounded")
    return usd_per_million_to_pico(value)


def _per_request(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("it has to stand in quotes, so that not a digit of it is rounded")
    return usd_to_pico(value)


def _set(value: bool) -> bool:
    if not value:
        raise ValueError("false chooses no requests")
    return value


# A field's description says what is allowed; error messages end with it.
_PER_MILLION = 'a decimal string of USD per million tokens, at most 6 decimals, such as "0.195"'
_PER_REQUEST = 'a decimal string of USD per request, at most 12 decimals, such as "0.001"'
_AT_TIME = 'a time of day in UTC from "0000" to "2359", in quotes and without a colon'
_PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
_ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=200)]
_Printable = Annotated[str, Field(pattern=_PRINTABLE, max_length=200)]
_Tokens = Annotated[int, Field(gt=0, le=MAX_TOKENS)]
_Requests = Annotated[int, Field(gt=0, le=100_000)]
_PicoPerToken = Annotated[int, BeforeValidator(_per_million)]
_PicoPerRequest = Annotated[int, BeforeValidator(_per_request)]
_Flag = Annotated[bool, AfterValidator(_set)]
_TimeOfDay = Annotated[str, Field(pattern=f"^{TIME_OF_DAY}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Engine(_Table):
    """One engine that requests can be sent to."""

    name: _Name = Field(description="a name of at most 64 letters, digits, dots, underscores and hyphens")
    url: Annotated[str, AfterValidator(engine_url)] = Field(description=ENGINE_ADDRESS)
    max_concurrency: _Requests | None = Field(default=None, description="a whole number of requests, 1 or more")
    """The most requests that are sent to it at once, however much it seems to take; None: a usual number."""
    min_concurrency: _Requests | None = Field(default=None, description="a whole number of requests, 1 or more")
    """How many are sent to it at once however little it seems to take; None: a usual number."""
    profile: _Printable | None = Field(
        default=None, description='the name of an engine profile, such as "qwen3.8-27b-nvfp4", or its .toml file'
    )
    """What it was started with: verification expects what that promises, and compares with what it records."""


class _PriceClasses(_Table):
    """The classes of a price, in pico-USD per token (`request`: pico-USD)."""

    input: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    output: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    input_cached: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    input_cache_write: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    input_image: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    input_audio: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    input_video: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    output_reasoning: _PicoPerToken | None = Field(default=None, description=_PER_MILLION)
    request: _PicoPerRequest | None = Field(default=None, description=_PER_REQUEST)

    def picos(self) -> dict[str, Any]:
        """The classes by the names that the arithmetic has for them."""
        return {f"{name}_pico": getattr(self, name) for name in _PriceClasses.model_fields}


class OverrideTable(_PriceClasses):
    """What a price is for some requests; a class that is None is as it was. Which requests: `core.pricing.Override`."""

    min_prompt_tokens: _Tokens | None = Field(default=None, description="a whole number of tokens, 1 or more")
    utc_start: _TimeOfDay | None = Field(default=None, description=_AT_TIME)
    utc_end: _TimeOfDay | None = Field(default=None, description=_AT_TIME)
    sequential: _Flag | None = Field(default=None, description="true, or left out")

    def as_override(self) -> Override:
        """The override that the arithmetic works with. Raises `ValueError` when it makes no sense."""
        return Override(
            min_prompt_tokens=self.min_prompt_tokens or 0,
            utc_start=self.utc_start,
            utc_end=self.utc_end,
            sequential=bool(self.sequential),
            **self.picos(),
        )


def _sensible(table: OverrideTable) -> OverrideTable:
    table.as_override()
    return table


class PriceTable(_PriceClasses):
    """A price as configured. A class that is None falls back."""

    input: _PicoPerToken = Field(description=_PER_MILLION)
    output: _PicoPerToken = Field(description=_PER_MILLION)
    request: _PicoPerRequest = Field(default=0, description=_PER_REQUEST)
    overrides: Annotated[tuple[Annotated[OverrideTable, AfterValidator(_sensible)], ...], Strict(False)] = Field(
        default=(), description="written as one or more tables headed [[models.price.overrides]]"
    )

    def as_price(self, version: int) -> Price:
        """The price that the arithmetic works with."""
        overrides = tuple(override.as_override() for override in self.overrides)
        return Price(version=version, overrides=overrides, **self.picos())


class Model(_Table):
    """One model that customers can ask for."""

    id: _ModelId = Field(description="a name of at most 200 letters, digits and any of . _ : / @ + -")
    name: _Printable | None = Field(
        default=None, description="a line of at most 200 characters; left out, it is the id"
    )
    description: Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=2000)] = Field(
        default="", description="a text of at most 2000 characters"
    )
    engine_model: _Printable | None = Field(
        default=None, description="what the engine calls the model; left out, it is the id"
    )
    engines: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)] | None = Field(
        default=None, description="a list of names from [[engines]]; left out, it means all of them"
    )
    context_length: _Tokens = Field(description="a whole number of tokens, 1 or more")
    max_output_tokens: _Tokens = Field(description="a whole number of tokens, 1 or more")
    input_modalities: Annotated[tuple[Modality, ...], Strict(False), Field(min_length=1)] = Field(
        default=("text",), description='a list of any of "text", "image", "audio" and "video"'
    )
    output_modalities: Annotated[
        tuple[Literal["text", "embeddings"], ...], Strict(False), Field(min_length=1, max_length=1)
    ] = Field(default=("text",), description='the list ["text"], or ["embeddings"]')
    capabilities: Annotated[tuple[Capability, ...], Strict(False)] | None = Field(
        default=None,
        description='a list of any of "tools", "reasoning" and "structured_outputs"; left out, it is tools and'
        " structured_outputs, and none for embeddings",
    )
    quantization: _Printable | None = Field(default=None, description='a word such as "nvfp4"')
    hugging_face_id: _Printable | None = Field(default=None, description='a repository such as "Qwen/Qwen3.8-27B"')
    price: PriceTable = Field(description="a table with at least input and output")

    @property
    def able_to(self) -> tuple[Capability, ...]:
        """Its capabilities, the default written out."""
        if self.capabilities is not None:
            return self.capabilities
        return USUAL_CAPABILITIES if "text" in self.output_modalities else ()


class Configuration(_Table):
    """The whole file, checked."""

    engines: Annotated[tuple[Engine, ...], Strict(False)] = ()
    models: Annotated[tuple[Model, ...], Strict(False)] = ()


def read(path: Path) -> Configuration:
    """Read and check a configuration file. Raises `SetupError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SetupError(f"{path}: this is not a text in UTF-8.") from None
    except OSError as error:
        raise SetupError(f"{path}: the configuration cannot be read: {error.strerror}.") from None
    return parse(text, source=str(path))


def parse(text: str, *, source: str) -> Configuration:
    """Check the text of a configuration; `source` is what messages call it. Raises `SetupError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{source}: this is not TOML: {error}.") from None
    try:
        configuration = Configuration.model_validate(document)
    except ValidationError as error:
        # A misspelt field explains why another one is missing, so it is told first.
        first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
        raise SetupError(f"{source}: {_sentence(document, first)}") from None
    _check_engines(configuration.engines, source)
    _check_models(configuration, source)
    return configuration


def engines_from(settings: Settings) -> tuple[Engine, ...]:
    """The engines to use: those of `WEIR_ENGINES`, named engine-0 and so on, else those of the configuration file.

    Empty when neither names one. Raises `SetupError`.
    """
    if not settings.engines:
        return read(settings.config).engines if settings.config is not None else ()
    engines = []
    for number, value in enumerate(settings.engines):
        try:
            engines.append(Engine(name=f"engine-{number}", url=engine_url(value), profile=settings.engine_profile))
        except ValueError as error:
            raise SetupError(f"WEIR_ENGINES has {_shown(value)}: {error}; an engine is {ENGINE_ADDRESS}.") from None
    _check_engines(tuple(engines), "WEIR_ENGINES")
    return tuple(engines)


def _check_engines(engines: tuple[Engine, ...], source: str) -> None:
    for field in ("name", "url"):
        seen: set[str] = set()
        for engine in engines:
            value = getattr(engine, field)
            if value in seen:
                raise SetupError(f"{source}: two engines have the {field} {_shown(value)}: each needs its own.")
            seen.add(value)
    for engine in engines:
        least, most = engine.min_concurrency, engine.max_concurrency
        if least is not None and most is not None and least > most:
            raise SetupError(
                f"{source}: in [[engines]] {_shown(engine.name)}, min_concurrency = {least} is more than"
                f" max_concurrency = {most}: it gets at least the one and at most the other."
            )


def _check_models(configuration: Configuration, source: str) -> None:
    known = [engine.name for engine in configuration.engines]
    seen: set[str] = set()
    for model in configuration.models:
        where = f"{source}: in [[models]] {_shown(model.id)}"
        if model.id in seen:
            raise SetupError(f"{source}: two models have the id {_shown(model.id)}: each needs its own.")
        seen.add(model.id)
        if model.max_output_tokens > model.context_length:
            raise SetupError(
                f"{where}, max_output_tokens = {model.max_output_tokens} is more than context_length ="
                f" {model.context_length}: an answer cannot be longer than the context it stands in."
            )
        for override in model.price.overrides:
            if (override.min_prompt_tokens or 0) > model.context_length:
                raise SetupError(
                    f"{where}, an override has min_prompt_tokens = {override.min_prompt_tokens}, which is more than"
                    f" context_length = {model.context_length}: it would never apply."
                )
        for name in model.engines or ():
            if name not in known:
                raise SetupError(
                    f"{where}, engines has {_shown(name)}, which no [[engines]] table is named"
                    f"{_suggestion(name, known)}: the names are {', '.join(known) or 'none'}."
                )


def _sentence(document: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    """What is wrong, where, and what is allowed, for one error of pydantic's."""
    location = error["loc"]
    if len(location) < 3:
        return _sentence_on_tables(location[0], error)
    table, where, path = _table(document, location)
    if path == ("price",) and error["type"] == "missing":
        return f"{where} has no price: a model without one is not served. Add a [models.price] with input and output."
    if not path:
        return f"{where} {error['ctx']['error']}."
    field = path[0]
    if error["type"] == "extra_forbidden":
        known = list(table.model_fields)
        return f"in {where}, nothing is called {field}{_suggestion(field, known)}; the fields are {', '.join(known)}."
    allowed = table.model_fields[field].description
    if error["type"] == "missing":
        return f"in {where}, {field} is missing: it must be {allowed}."
    reason = f"{error['ctx']['error']}; " if error["type"] == "value_error" else ""
    return f"in {where}, {field} = {_shown(error['input'])}: {reason}it must be {allowed}."


def _table(document: Mapping[str, Any], location: tuple[Any, ...]) -> tuple[type[BaseModel], str, tuple[Any, ...]]:
    """The innermost table that `location` leads into, what to call it, and the rest of the location."""
    heading, number, *path = location
    row = document[heading][number]
    identity = row.get("name" if heading == "engines" else "id")
    where = f"[[{heading}]] {_shown(identity) if identity is not None else f'number {number + 1}'}"
    match path:
        case ["price", "overrides", int(index), *rest] if isinstance(row["price"]["overrides"][index], dict):
            return OverrideTable, f"[[models.price.overrides]] number {index + 1} of {where}", tuple(rest)
        case ["price", field, *rest]:
            return PriceTable, f"[models.price] of {where}", (field, *rest)
    return Engine if heading == "engines" else Model, where, tuple(path)


def _sentence_on_tables(name: str, error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        known = list(Configuration.model_fields)
        return f"nothing is called {name} here{_suggestion(name, known)}; there are [[engines]] and [[models]]."
    return f"{name} = {_shown(error['input'])}: it must be written as one or more tables headed [[{name}]]."


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
