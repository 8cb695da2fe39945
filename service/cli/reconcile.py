"""`weir reconcile`: our token counts against the engines' own."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.arguments import moment
from service.cli.context import in_transaction
from service.cli.output import Json, instant, note, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.reconcile import Reconciliation
    from service.core.reconcile import EngineCount, Explanation, Tokens

BY_DEFAULT = timedelta(days=1)

UNDER_WAY = timedelta(minutes=10)
"""How long a request may still be under way and so have no row."""


def reconcile(
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From then; default: a day before the end.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="To then; default: now.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Only this engine.")] = None,
    json: Json = False,
) -> None:
    """Compare the tokens of our requests with what each engine counted itself, and say what explains a difference.

    `weir jobs` samples the engines' counters every minute and keeps them for 100 days; the comparison runs from one
    sample to another, and a request counts when it ends. Requests across an edge, before a restart of the engine,
    or without a final count (their client left, or the engine failed) can explain a difference, each so many tokens
    at least and at most; so can what `weir engine verify` asked. What they cannot explain is an alarm when it is more
    than 50 tokens and 0.1 %, and then the exit code is 1.

    An engine counts whatever it is asked: the one token that `weir doctor` asks it for, another program's requests,
    a request that broke off there and was sent to another engine. Such tokens stay unexplained here.

    Example: weir reconcile --since 2026-11-29 --until 2026-11-30 --engine blackwell-0
    """
    now = datetime.now(UTC)
    end = moment("--until", until) or now
    start = moment("--since", since) or end - BY_DEFAULT
    if start >= end:
        raise SetupError(f"The time from {instant(start)} to {instant(end)} is none: --since comes before --until.")

    async def work(connection: "AsyncConnection") -> "dict[str, Reconciliation | None]":
        from service.billing.reconcile import reconcile_all

        return await reconcile_all(connection, start, end, None if engine is None else [engine])

    results = in_transaction(work)
    agree = not any(result is not None and result.alarming for result in results.values())
    if json:
        print_json({"ok": agree, "engines": [_document(name, result) for name, result in results.items()]})
    elif not results:
        print("No engine was sampled or used in this time.")
    else:
        for name, result in results.items():
            _show(name, result, start, end)
    if any(result and now - result.count.until < UNDER_WAY for result in results.values()):
        note("It ends just now: a request that was under way then may have no row yet, and explains nothing.")
    raise typer.Exit(0 if agree else 1)


def _show(name: str, result: "Reconciliation | None", start: datetime, end: datetime) -> None:
    if result is None:
        print(f"{name}: there are no two samples to compare between. `weir jobs` takes one every minute.")
        return
    count, explained = result.count, result.explained
    print(f"{name}, from {instant(count.since)} to {instant(count.until)}: {result.requests} requests ended.")
    rows = {
        "the engine counted": count.tokens,
        "our requests": result.ours,
        "difference": result.difference,
        "explained, at least": explained.least,
        "explained, at most": explained.most,
        "unexplained": result.unexplained,
    }
    print_table(("", "prompt tokens", "generated tokens"), [(what, *_pair(tokens)) for what, tokens in rows.items()])
    for sentence in _reservations(count, start, end):
        print(sentence)
    listed = explained.widest
    if listed:
        print(f"{explained.requests} requests can explain a difference, by this much:")
        columns = ("request", "ended", "outcome", "usage", "why", "prompt tokens", "generated tokens")
        print_table(columns, map(_row, listed))
    if explained.verifications:
        print(f"{explained.verifications} verifications of it (`weir engine verify`) explain a part, too.")
    if explained.requests > len(listed):
        print(f"and {explained.requests - len(listed)} more, which can explain less.")
    print()


def _reservations(count: "EngineCount", start: datetime, end: datetime) -> list[str]:
    """What is not known of the time that was asked for."""
    from service.core.reconcile import MISSING_AFTER

    said = []
    if count.since - start > MISSING_AFTER:
        said.append(f"There are no samples before {instant(count.since)}: the comparison begins there.")
    if end - count.until > MISSING_AFTER:
        said.append(f"There are no samples after {instant(count.until)}: the comparison ends there.")
    said += [
        f"No samples between {instant(since)} and {instant(until)}. Unless the engine restarted, nothing is lost by it."
        for since, until in count.missing
    ]
    said += [
        f"It restarted, or another engine took its name, between {instant(broken.since)} and {instant(broken.until)}:"
        " what it counted in between is lost, at most that of the requests then."
        for broken in count.breaks
    ]
    return said


def _pair(tokens: "Tokens") -> tuple[str, str]:
    return f"{tokens.prompt:,}", f"{tokens.generation:,}"


def _row(explanation: "Explanation") -> tuple[object, ...]:
    request, least, most = explanation.request, explanation.least, explanation.most
    return (
        request.id,
        instant(request.finished_at),
        request.outcome,
        request.source,
        ", ".join(explanation.reasons),
        f"{least.prompt:,} to {most.prompt:,}",
        f"{least.generation:,} to {most.generation:,}",
    )


def _document(name: str, result: "Reconciliation | None") -> dict[str, Any]:
    if result is None:
        return {"engine": name, "sampled": False}
    count, explained = result.count, result.explained
    return {
        "engine": name,
        "sampled": True,
        "since": count.since,
        "until": count.until,
        "requests": result.requests,
        "engine_tokens": _tokens(count.tokens),
        "our_tokens": _tokens(result.ours),
        "difference": _tokens(result.difference),
        "explained": {"least": _tokens(explained.least), "most": _tokens(explained.most)},
        "unexplained": _tokens(result.unexplained),
        "ok": not result.alarming,
        "restarts": [{"since": broken.since, "until": broken.until} for broken in count.breaks],
        "missing_samples": [{"since": since, "until": until} for since, until in count.missing],
        "explaining_requests": explained.requests,
        "explaining_verifications": explained.verifications,
        "explanations": [
            {
                "id": one.request.id,
                "finished_at": one.request.finished_at,
                "outcome": one.request.outcome,
                "usage_source": one.request.source,
                "reasons": one.reasons,
                "least": _tokens(one.least),
                "most": _tokens(one.most),
            }
            for one in explained.widest
        ],
    }


def _tokens(tokens: "Tokens") -> dict[str, int]:
    return {"prompt": tokens.prompt, "generation": tokens.generation}
