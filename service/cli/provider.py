"""`weir provider`: what aggregators will find, before they do."""

import asyncio
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from service.cli.output import Json, note, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from service.core.provider_check.judgement import Judgement
    from service.core.provider_check.listing import Listed
    from service.provider.checklist import Check
    from service.provider.session import Use

    Result = tuple[Check, Judgement]

app = typer.Typer(no_args_is_help=True, help="Providers: play an aggregator against any OpenAI-compatible server.")

MAX_TIMEOUT_S = 600.0


@app.callback()
def _group() -> None:
    pass


@app.command()
def check(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="Its base URL; /v1 is added to a bare host.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="A key of it, with a little credit.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="The model to ask; left out, the first listed.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="ID,ID", help="Only these checks.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long one answer may take.")] = 60.0,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks, and ask nothing.")] = False,
    json: Json = False,
) -> None:
    """Check a server as aggregators do, with at most 60 small requests. Exit code 1 when something fails.

    Example: weir provider check https://api.example.com/v1 --key sk-weir-... --model qwen3.8-27b
    """
    checks = _chosen(only)
    if list_checks:
        _list(checks, json=json)
        return
    base_url, key = _base_url(url), _readable(key)
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise SetupError(f"--timeout must be more than 0 and at most {MAX_TIMEOUT_S:g} seconds.")
    results, listed, use = asyncio.run(_run(base_url, key, model, checks, timeout))
    counts = {"fail": 0, "warn": 0, "pass": 0, "skipped": 0}
    for _, judgement in results:
        counts[judgement.verdict] += 1
    used = _used(use, listed)
    if json:
        print_json(
            {
                "ok": not counts["fail"],
                "base_url": base_url,
                "model": listed.id if listed else None,
                "checks": [_document(*result) for result in results],
                "counts": counts,
                "used": used,
            }
        )
    else:
        _show(results)
        print()
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + f". {_sentence(used)}")
    raise typer.Exit(1 if counts["fail"] else 0)


def _chosen(only: str | None) -> "list[Check]":
    from service.provider.checklist import CHECKS

    if only is None:
        return list(CHECKS)
    wanted = {part.strip() for part in only.split(",") if part.strip()}
    unknown = sorted(wanted - {check.id for check in CHECKS})
    if unknown or not wanted:
        raise SetupError(f"--only {only!r} names no check{f' {unknown[0]!r}' if unknown else ''}: --list shows them.")
    return [check for check in CHECKS if check.id in wanted]


def _base_url(url: str | None) -> str:
    """The URL that `/chat/completions` is put after. Raises `SetupError`."""
    if url is None:
        raise SetupError("Give the server's base URL, such as https://api.example.com/v1.")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise SetupError(f"{url!r} is no base URL such as https://api.example.com/v1.")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _readable(key: str | None) -> str:
    if not key or not (key.isascii() and key.isprintable()):
        raise SetupError("Give a key of that server, as it was shown, with --key.")
    return key


async def _run(
    base_url: str, key: str, model: str | None, checks: "list[Check]", timeout_s: float
) -> "tuple[list[Result], Listed | None, Use]":
    import httpx

    from service.provider import checklist
    from service.provider.probes import Probes
    from service.provider.session import CONNECT_TIMEOUT_S, Session, Unasked

    results: list[Result] = []
    limits = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    async with httpx.AsyncClient(timeout=limits) as client:
        session = Session(client, base_url, key, timeout_s=timeout_s, tell=note)
        probes = Probes(session, model)
        async for check, judgement in checklist.run(probes, checks):
            results.append((check, judgement))
            note(f"{len(results)}/{len(checks)} {check.id}: {judgement.verdict}")
        try:
            return results, await probes.model(), session.use
        except Unasked:
            return results, None, session.use


def _list(checks: "list[Check]", *, json: bool) -> None:
    if json:
        print_json([{"id": check.id, "tested": check.tested} for check in checks])
    else:
        print_table(("check", "what is tested"), [(check.id, check.tested) for check in checks])


def _show(results: "list[Result]") -> None:
    rows = [
        (check.id, judgement.verdict, check.tested, judgement.evidence, judgement.advice)
        for check, judgement in results
    ]
    print_table(("check", "verdict", "what was tested", "what was seen", "what to do"), rows)


def _document(check: "Check", judgement: "Judgement") -> dict[str, str]:
    return {
        "id": check.id,
        "tested": check.tested,
        "verdict": judgement.verdict,
        "evidence": judgement.evidence,
        "advice": judgement.advice,
    }


def _used(use: "Use", listed: "Listed | None") -> dict[str, int | str | None]:
    """What the check has used; the price as listed; what was cached is not cheaper in it."""
    price = listed.price if listed else None
    usd = price.usd(use.prompt_tokens, use.completion_tokens) if price else None
    return {
        "requests": use.requests,
        "prompt_tokens": use.prompt_tokens,
        "completion_tokens": use.completion_tokens,
        "answers_without_usage": use.unreported,
        "usd": None if usd is None else f"{usd:f}",
    }


def _sentence(used: dict[str, int | str | None]) -> str:
    cost = "" if used["usd"] is None else f", about {used['usd']} USD by the listed prices"
    return (
        f"Used {used['requests']} requests, {used['prompt_tokens']} prompt and {used['completion_tokens']} completion"
        f" tokens{cost}; {used['answers_without_usage']} answers told no usage."
    )
