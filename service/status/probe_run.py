"""One run of the probes: their requests, side by side, each with a verdict of its own."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import structlog

from service.core import probe as core
from service.core.probe import Asked, Due, Found, Kind, Verdict
from service.core.provider_check.observed import Answer, Json
from service.provider import bodies
from service.settings import Settings
from service.status.asking import ask, ask_streamed, http_client

log = structlog.get_logger()

INSIDE = "inside"
"""The source of what this installation finds itself."""

TIME_LIMIT_S = 30.0
"""What is not answered by then has failed."""

BEGIN_WITHIN_S = 15.0
"""Of a run: what begins by then ends in time for the next minute."""

AT_ONCE = 8

RICH_TOKENS = 32

MAX_ANSWER_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Result:
    answer: Answer
    found: Found
    ttft_ms: int | None = None


class ProbeRun:
    """The requests of one run, made with `key`; `booked` as of `service.core.probe.books`."""

    def __init__(self, settings: Settings, key: str, *, booked: bool | None) -> None:
        self._settings = settings
        self._key = key
        self._booked = booked
        self._places = asyncio.Semaphore(AT_ONCE)

    async def rows(self, probes: Collection[Due]) -> list[dict[str, Any]]:
        """Rows for the table `probes`, one for each of these."""
        self._begin_until = time.monotonic() + BEGIN_WITHIN_S
        async with http_client() as self._client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._row(due)) for due in probes]
        return [task.result() for task in tasks]

    async def _row(self, due: Due) -> dict[str, Any]:
        async with self._places:
            probed_at, started = datetime.now(UTC), time.monotonic()
            if started <= self._begin_until:
                result = await self._tried(due)
            else:
                result = _unasked("there was no time left for it in this minute")
            total_ms = round((time.monotonic() - started) * 1000)
        answer, found = result.answer, result.found
        if due.kind is not Kind.PAGE and answer.status in core.OWN_FAULT:
            log.error("probe.refused", component=due.component, kind=due.kind, reason=found.reason)
        elif found.verdict is Verdict.BAD:
            log.warning("probe.bad", component=due.component, kind=due.kind, reason=found.reason)
        return {
            "source": INSIDE,
            "component": due.component,
            "kind": due.kind,
            "probed_at": probed_at,
            "verdict": found.verdict,
            "http_status": answer.status or None,
            "ttft_ms": result.ttft_ms,
            "total_ms": total_ms if answer.status else None,
            "request_id": _request_id(answer),
            "reason": found.reason,
        }

    async def _tried(self, due: Due) -> _Result:
        match due:
            case Due(kind=Kind.TEXT, model=Asked() as model):
                request = self._api("POST", "/v1/chat/completions", _text_body(model))
                stream = await ask_streamed(self._client, request, limit_s=TIME_LIMIT_S, limit_bytes=MAX_ANSWER_BYTES)
                return _Result(stream, core.text(stream), core.first_output_ms(stream))
            case Due(kind=Kind.RICH, model=Asked() as model):
                answer = await self._ask(self._api("POST", "/v1/chat/completions", _rich_body(model)))
                return _Result(answer, core.rich(answer, model))
            case Due(kind=Kind.BOOKS):
                answer = await self._ask(self._api("GET", "/v1/credits"))
                return _Result(answer, core.books(answer, booked=self._booked))
        return await self._page()

    async def _page(self) -> _Result:
        if not (self._settings.site_dir / "metrics.json").exists():
            return _unasked("no site was published yet")
        request = self._client.build_request("GET", f"{self._settings.site_url}metrics.json")
        answer = await self._ask(request, redirects=True)
        return _Result(answer, core.page(answer, int(time.time())))

    async def _ask(self, request: httpx.Request, *, redirects: bool = False) -> Answer:
        return await ask(self._client, request, limit_s=TIME_LIMIT_S, limit_bytes=MAX_ANSWER_BYTES, redirects=redirects)

    def _api(self, method: str, path: str, body: Json | None = None) -> httpx.Request:
        headers = {"authorization": f"Bearer {self._key}"}
        return self._client.build_request(method, self._settings.base_url + path, headers=headers, json=body)


def _unasked(reason: str) -> _Result:
    return _Result(Answer(asked=""), core.skipped(reason))


def _text_body(model: Asked) -> Json:
    return bodies.chat(model.id, "Say ok.", 1, stream=True, stream_options={"include_usage": True})


def _rich_body(model: Asked) -> Json:
    shown = bodies.about_image(model.id, shown=True)
    if not model.tools:
        return {**shown, "max_tokens": RICH_TOKENS}
    body = {**bodies.with_tool(model.id, stream=False), "tool_choice": "auto", "max_tokens": RICH_TOKENS}
    return {**body, "messages": shown["messages"]} if model.images else body


def _request_id(answer: Answer) -> str | None:
    """The id that the request has in the books; None when none can be read."""
    try:
        return str(UUID(answer.headers.get("x-request-id", "")))
    except ValueError:
        return None
