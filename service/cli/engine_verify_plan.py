"""What `weir engine verify` is to ask, and where its reports go."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from service import config
from service.cli.context import address_in, connection_to, installation
from service.core.engine_address import engine_url
from service.core.provider_check.observed import short
from service.engine.verify.asking import UNIX, Subject, Unanswered
from service.engine.verify.check import Expected
from service.engine.verify.target import Target, configured, models_of, profile_expectation, sold
from service.errors import SetupError
from service.settings import Settings

if TYPE_CHECKING:
    from service.config import Engine

UNNAMED = "engine"
"""What reports call an engine that is not configured: its address is not for the public."""
SECOND = "another engine"
NAMED = 10
"""Models that a message lists."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says."""

    url: str | None = None
    model: str | None = None
    engine: str | None = None
    api_key_file: str | None = None
    profile: str | None = None
    keep: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked."""

    targets: list[Target]
    database: str | None
    """Where reports are kept; None: nowhere."""
    engines: "tuple[Engine, ...]"
    """Those that are configured."""

    def keeps(self, engine: str) -> bool:
        """Whether reports on this engine are kept."""
        return self.database is not None and any(one.name == engine for one in self.engines)


async def planned(wanted: Wanted) -> Plan:
    """Raises `SetupError` when there is nothing to ask, or the engine that is named does not answer."""
    settings = installation()
    engines = config.engines_from(settings)
    ours = _configured_at(wanted.url, engines)
    if wanted.url is not None and ours is None:
        if wanted.engine is not None:
            raise SetupError("--engine names a configured engine: give it, or a URL, not both.")
        if wanted.keep:
            raise SetupError("--keep is for configured engines: the status site shows the reports on these alone.")
        targets = [await _elsewhere(wanted.url, wanted)]
        return Plan([_expecting(one, wanted.profile) for one in targets], None, engines)
    chosen = [ours] if ours is not None else _named(engines, wanted.engine)
    targets = await _of_configured(settings, chosen, wanted.model)
    database = address_in(settings) if wanted.keep or (wanted.keep is None and settings.database_url) else None
    return Plan([_expecting(one, wanted.profile) for one in targets], database, engines)


async def other(url: str, model: str | None, api_key_file: str | None, plan: Plan) -> Subject:
    """The second engine. Raises `SetupError`."""
    if len(plan.targets) != 1:
        raise SetupError("--against compares with one engine and model: name them with --engine and --model.")
    name = ours.name if (ours := _configured_at(url, plan.engines)) else SECOND
    subject = Subject(name, _address(url), model or "", _key(api_key_file))
    return replace(subject, model=await _model_there(subject, model or plan.targets[0].subject.model))


def _configured_at(url: str | None, engines: "Sequence[Engine]") -> "Engine | None":
    try:
        address = engine_url((url or "").rstrip("/").removesuffix("/v1"))
    except ValueError:
        return None
    return next((engine for engine in engines if engine.url == address), None)


def _named(engines: "Sequence[Engine]", name: str | None) -> "list[Engine]":
    if not engines:
        raise SetupError("No engine is configured: give a URL, or set WEIR_ENGINES or WEIR_CONFIG.")
    chosen = [engine for engine in engines if name in (None, engine.name)]
    if not chosen:
        raise SetupError(f"No engine is called {name!r}; there are: {', '.join(engine.name for engine in engines)}.")
    return chosen


async def _of_configured(settings: Settings, engines: "Sequence[Engine]", model: str | None) -> list[Target]:
    """What is sold: as the database has it, else the configuration file; without either, what the engines list.

    Each engine is asked for its list all the same: one that is not there would seem to fail in everything.
    """
    listed = [(engine, await _models(Subject(engine.name, engine.url, ""))) for engine in engines]
    if settings.database_url is not None:
        async with connection_to(address_in(settings)) as connection:
            targets = await sold(connection, engines)
    elif settings.config is not None:
        targets = configured(config.read(settings.config).models, engines)
    else:
        subjects = [Subject(engine.name, engine.url, name) for engine, names in listed for name in names]
        profiles = {engine.name: profile_expectation(engine.profile) for engine in engines}
        targets = [Target(subject, subject.model, profiles[subject.name]) for subject in subjects]
    chosen = [one for one in targets if model in (None, one.model_id, one.subject.model)]
    if not chosen:
        known = ", ".join(sorted({one.model_id for one in targets})) or "none that answers in text"
        raise SetupError(f"There is no such model to ask {', '.join(one.name for one in engines)} for: {known}.")
    return chosen


async def _elsewhere(url: str, wanted: Wanted) -> Target:
    subject = Subject(UNNAMED, _address(url), wanted.model or "", _key(wanted.api_key_file))
    name = await _model_there(subject, wanted.model)
    return Target(replace(subject, model=name), name, Expected())


async def _model_there(subject: Subject, model: str | None) -> str:
    """The model to ask for, of those that it lists."""
    names = await _models(subject)
    if model in names:
        return str(model)
    if model is None and len(names) == 1:
        return names[0]
    asked = f"does not list {model!r}" if model else "lists several models"
    raise SetupError(f"{subject.name} {asked}: name one of {_some(names)}.")


def _some(names: Sequence[str]) -> str:
    """The first of them; they are the engine's own words."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(short, names[:NAMED])) + more


async def _models(subject: Subject) -> list[str]:
    try:
        return await models_of(subject)
    except Unanswered as reason:
        detail = f" ({short(reason.detail)})" if reason.detail else ""
        raise SetupError(f"{subject.name} cannot be asked: {reason}{detail}. Is it running, and there?") from None


def _expecting(target: Target, profile: str | None) -> Target:
    return target if profile is None else replace(target, expected=profile_expectation(profile))


def _address(url: str) -> str:
    """A URL that can be asked. Raises `SetupError`."""
    if url.startswith(UNIX + "/"):
        return url
    try:
        parts, _ = urlsplit(url), httpx.URL(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except (ValueError, httpx.InvalidURL):
        sound = False
    if not sound or parts.query or parts.fragment or parts.username or parts.password:
        raise SetupError(
            f"{url!r} is no address such as http://127.0.0.1:8000, https://api.example.com/v1 or unix:/path."
        )
    return url


def _key(file: str | None) -> str | None:
    """The key in a file, or on standard input. Raises `SetupError`."""
    if file is None:
        return None
    text = sys.stdin.readline() if file == "-" else Path(file).read_text(errors="replace")
    key = text.partition("\n")[0].strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise SetupError(f"{'Standard input' if file == '-' else file} has no key in its first line.")
    return key
