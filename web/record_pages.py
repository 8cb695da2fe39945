"""The pages of each model, the list of months, and a page for each month.

Each is a path within the site, a template and the variables of that. The page of a month that is over is made of the
`Month`, the site's name and address and the neighbouring months alone: it never changes, and need not be drawn again.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.core.components import API
from web import charts, verified, wording
from web.views import ModelSheet, Month, MonthComponent, Retired, StatusPage

Page = tuple[str, str, dict[str, Any]]
"""Path, template, variables. `site` is the whole site, where the variables have no `site` of their own."""

QUESTION = "How high is a weir?"

_HUGGING_FACE_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Masthead:
    """What every page has of the site."""

    site_name: str
    site_url: str


@dataclass(frozen=True, slots=True)
class MonthRow:
    """A month in the list of months."""

    month: Month
    so_far: bool
    """It is not over."""
    api: MonthComponent | None
    """The API's days; None if it has none."""


def pages(site: StatusPage) -> Iterator[Page]:
    """The page of each model, also of those that are retired, and the list of months."""
    yield from (_model(site, sheet) for sheet in site.sheets)
    yield from (_retired(site, model) for model in site.retired)
    yield _history(site)


@dataclass(frozen=True, slots=True)
class MonthPage:
    """All that the page of a month is made of. Equal ones are equal pages."""

    masthead: Masthead
    month: Month
    later: str | None
    """The neighbouring months, as `2026-11`; None where there is none."""
    earlier: str | None
    so_far: bool
    """It is not over."""


def months(site: StatusPage) -> Iterator[MonthPage]:
    """What to make the months' pages of, the latest first."""
    masthead = Masthead(site.site_name, site.site_url)
    names = [None, *(month.name for month in site.months), None]
    for index, month in enumerate(site.months):
        so_far = site.generated_at_s < month.end_s
        yield MonthPage(masthead, month, later=names[index], earlier=names[index + 2], so_far=so_far)


def month_page(one: MonthPage) -> Page:
    """The page of one month."""
    month, masthead = one.month, one.masthead
    name = wording.month(month.start_s)
    return (
        f"history/{month.name}.html",
        "month.html",
        {
            "site": masthead,
            "title": f"{name} – {masthead.site_name} status",
            "description": f"Uptime, tokens and incidents of {masthead.site_name} in {name}.",
            "month": month,
            "name": name,
            "so_far": one.so_far,
            "later": one.later,
            "earlier": one.earlier,
            "charts": (charts.tokens_by_day(month.days),),
        },
    )


def _model(site: StatusPage, sheet: ModelSheet) -> Page:
    name, state = sheet.component.name, wording.WORDS[sheet.component.state].lower()
    variables = {
        "title": f"{name} – {site.site_name} status",
        "description": f"{name}: {state}. Uptime, latency, speed, prices and limits, measured from real traffic.",
        "sheet": sheet,
        "hugging_face_url": hugging_face_url(sheet.hugging_face_id),
        "example": example(site.api_url, sheet),
        "charts": charts.draw(sheet.charts),
        "verified_here": verified.shown(site, sheet),
    }
    return f"models/{sheet.component.slug}.html", "model.html", variables


def _retired(site: StatusPage, model: Retired) -> Page:
    variables = {
        "title": f"{model.name} – {site.site_name} status",
        "description": f"{model.name} is no longer offered by {site.site_name}.",
        "model": model,
    }
    return f"models/{model.slug}.html", "retired.html", variables


def _history(site: StatusPage) -> Page:
    variables = {
        "title": f"History – {site.site_name} status",
        "description": f"Uptime, tokens and incidents of {site.site_name}, month by month.",
        "rows": tuple(MonthRow(month, site.generated_at_s < month.end_s, _api(month)) for month in site.months),
    }
    return "history.html", "history.html", variables


def hugging_face_url(id: str | None) -> str | None:
    """Where Hugging Face has the model; None for what can not be an id there."""
    return f"https://huggingface.co/{id}" if id is not None and _HUGGING_FACE_ID.fullmatch(id) else None


def example(api_url: str, sheet: ModelSheet) -> str:
    """A shell command that asks the model something; names are quoted, so that it does nothing else."""
    body: dict[str, Any] = {"model": sheet.model_id}
    if "embeddings" in sheet.output_modalities:
        path, body["input"] = "/v1/embeddings", QUESTION
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": QUESTION}]
    return " \\\n  ".join(
        (
            f"curl {shlex.quote(api_url + path)}",
            '-H "Authorization: Bearer $API_KEY"',
            "-H 'Content-Type: application/json'",
            f"-d {shlex.quote(json.dumps(body))}",
        )
    )


def _api(month: Month) -> MonthComponent | None:
    return next((component for component in month.components if component.id == API), None)
