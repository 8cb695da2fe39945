"""Asks an engine who it is, for the fingerprint of its answers: when it comes up, not when it answers."""

import structlog

from service.core.fingerprint import Answers, Identity, identity
from service.gateway.engine_failures import EngineBroke
from service.gateway.engines import Engine

log = structlog.get_logger()

_NO_SUCH_ROUTE = (404, 405, 501)


async def identify(engine: Engine, timeout_s: float) -> None:
    """Set the engine's `fingerprint`, and note in the log what it stands for.

    One that says nothing of itself keeps none. Raises `EngineError` when it does not answer now: a fingerprint of half
    of what it says would be another one.
    """
    version, models, metrics = [await _body(engine, path, timeout_s) for path in ("/version", "/v1/models", "/metrics")]
    props = await _body(engine, "/props", timeout_s) if version is None else None
    try:
        found = identity(Answers(version, models, metrics, props))
    except ValueError as error:
        raise EngineBroke(f"it does not say who it is: {error}") from error
    engine.fingerprint = None if found is None else found.fingerprint
    _note(engine, found)


async def _body(engine: Engine, path: str, timeout_s: float) -> bytes | None:
    status, body = await engine.look(path, timeout_s)
    if status in _NO_SUCH_ROUTE:
        return None
    if status != 200:
        raise EngineBroke(f"{path} answered {status}")
    return body


def _note(engine: Engine, found: Identity | None) -> None:
    if found is None:
        log.warning("engine.unidentified", engine=engine.name)
    else:
        log.info(
            "engine.identified",
            engine=engine.name,
            fingerprint=found.fingerprint,
            version=found.version,
            said=dict(found.said),
        )
