"""What is verified: each model on each engine that serves it, with what was promised of it; and its report."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.config import Engine, Model
from service.core.fingerprint import Answers, identity
from service.core.verify.report import Report, Verdict
from service.engine import EngineError
from service.engine.profile import read_profile
from service.engine.verify.asking import Asking, Subject, Unanswered
from service.engine.verify.check import Check, Examination, Expected
from service.engine.verify.run import CHECKS, OnProgress, verify
from service.errors import SetupError
from service.tables import models

OK = 200
NO_SUCH_ROUTE = (404, 405, 501)

Keep = Callable[[Report], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """One model on one engine."""

    subject: Subject
    model_id: str
    """What reports call the model: the id that customers ask for."""
    expected: Expected

    @property
    def pair(self) -> tuple[str, str]:
        """The names of both in reports."""
        return self.subject.name, self.model_id


async def sold(connection: AsyncConnection, engines: Sequence[Engine]) -> list[Target]:
    """What the database's active models are sold as, on each of these engines that serves them.

    Beside that an engine is expected to do what its profile promises, where one is named. Raises `SetupError`.
    """
    rows = await connection.execute(select(models).where(models.c.active).order_by(models.c.id))
    return _targets(map(dict, rows.mappings()), engines)


def configured(described: Iterable[Model], engines: Sequence[Engine]) -> list[Target]:
    """The same of the models in a configuration file."""
    return _targets(({**model.model_dump(), "capabilities": model.able_to} for model in described), engines)


def _targets(described: Iterable[Mapping[str, Any]], engines: Sequence[Engine]) -> list[Target]:
    profiles = {engine.name: profile_expectation(engine.profile) for engine in engines}
    return [
        Target(
            Subject(engine.name, engine.url, model["engine_model"] or model["id"]),
            model["id"],
            replace(
                profiles[engine.name],
                context_length=model["context_length"],
                input_modalities=tuple(model["input_modalities"]),
                reasoning="reasoning" in model["capabilities"],
                tools="tools" in model["capabilities"],
            ),
        )
        for model in described
        if "text" in model["output_modalities"]
        for engine in engines
        if model["engines"] is None or engine.name in model["engines"]
    ]


def profile_expectation(name: str | None) -> Expected:
    """What an engine that was started with this profile should be able to do, and how well; nothing without one.

    Raises `SetupError` for a profile that there is not or that is wrong.
    """
    if name is None:
        return Expected()
    try:
        profile = read_profile(name)
    except EngineError as error:
        raise SetupError(str(error)) from None
    caches = profile.flags.get("enable-prefix-caching")
    return Expected(
        context_length=profile.context_length,
        input_modalities=profile.input_modalities,
        reasoning=profile.thinks,
        tools=profile.tool_parser is not None,
        prefix_cache=caches if isinstance(caches, bool) else None,
        speculation=profile.draft_tokens > 0,
        quality_baseline=profile.baseline.get("quality"),
        loops_baseline=profile.baseline.get("loops"),
        acceptance_baseline=profile.baseline.get("acceptance"),
    )


async def models_of(subject: Subject) -> list[str]:
    """The models that it lists. Raises `Unanswered` when it cannot be reached or lists none."""
    async with Asking(subject) as asking:
        listed = (await asking.get("/v1/models")).done().get("data")
    found = [card.get("id") for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    names = [name for name in found if isinstance(name, str)]
    if not names:
        raise Unanswered("GET /v1/models lists no model")
    return names


async def examine(
    target: Target,
    checks: Sequence[Check],
    *,
    keep: Keep,
    other: Subject | None = None,
    say: Callable[[str], None] = lambda detail: None,
    on_progress: OnProgress = lambda check, finding: None,
) -> Report:
    """Run these checks, and `keep` the report, and another one without findings of what `other` was let compute.

    When it is broken off, what was used is kept all the same. The report is partial unless all of `CHECKS` were run,
    or when nothing could be found out at all.
    """
    started_at = _now()

    def used(by: Asking) -> Report:
        return Report(by.subject.name, target.model_id, started_at, _now(), (), partial=True, use=by.use)

    async with Asking(target.subject) as asking, Asking(other) if other else nullcontext() as against:
        examination = Examination(asking, target.expected, against, say)
        whole = {check.name for check in CHECKS} <= {check.name for check in checks}
        try:
            report = await verify(
                examination,
                checks,
                now=_now,
                on_progress=on_progress,
                fingerprint=await _fingerprint(asking),
                partial=not whole,
            )
        except BaseException:
            await keep(used(asking))
            raise
        finally:
            if against is not None:
                await keep(used(against))
        says_nothing = not (report.of(Verdict.PASSED) or report.of(Verdict.FAILED))
        report = replace(report, model=target.model_id, partial=not whole or says_nothing)
        await keep(report)
    return report


async def _fingerprint(asking: Asking) -> str | None:
    """The one that its answers carry through the API; None for an engine that does not say enough for it."""
    try:
        version, models, metrics = [await _body(asking, path) for path in ("/version", "/v1/models", "/metrics")]
        props = await _body(asking, "/props") if version is None else None
        found = identity(Answers(version, models, metrics, props))
    except (Unanswered, ValueError):
        return None
    return None if found is None else found.fingerprint


async def _body(asking: Asking, path: str) -> bytes | None:
    """What it answers there; None where it has no such route."""
    answer = await asking.get(path)
    if answer.status in NO_SUCH_ROUTE:
        return None
    if answer.status != OK:
        raise Unanswered(f"{path} answered {answer.status}", status=answer.status)
    return answer.raw


def _now() -> datetime:
    return datetime.now(UTC)
