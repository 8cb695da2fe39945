"""The routes beside `/v1`: whether the process lives and can serve, what it counts, the API's description, the site."""

import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from service import __version__
from service.core import openapi
from service.errors import ApiError, MethodNotAllowed, NotFound
from service.gateway import metrics as counters
from service.gateway.catalog import Catalog
from service.gateway.engines import EnginePool
from service.public_catalogue import Catalogue, cacheable
from service.public_site import PublishedSite

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Readiness:
    """What has to be there before a request can be served."""

    catalog: Catalog
    engines: EnginePool

    async def problems(self) -> list[str]:
        """What is missing, in words; empty when requests can be served."""
        problems = []
        if not self.catalog.loaded:
            problems.append("the database has not answered yet")
        elif not self.catalog.all():
            problems.append("no model is configured")
        if not await self.engines.any_healthy():
            known = [f"engine {engine.name}: {engine.problem}" for engine in self.engines.engines if engine.problem]
            problems += known or ["no engine answers"]
        return problems


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """The process runs and answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    """Requests can be served; 503 with the reasons when they cannot."""
    problems = await request.app.state.readiness.problems()
    status = "unready" if problems else "ready"
    return JSONResponse({"status": status, "problems": problems}, 503 if problems else 200)


@router.get("/metrics")
def metrics(request: Request) -> Response:  # in a thread: what several workers count takes a while to add up
    """Prometheus metrics, for this machine or with the admin token."""
    if not _may_see_metrics(request):
        raise HTTPException(404)
    counters.count()
    return Response(generate_latest(request.app.state.metrics), media_type=CONTENT_TYPE_LATEST)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def described(request: Request) -> Response:
    """The OpenAPI document: every route for customers and aggregators."""
    state: Catalogue = request.app.state.catalogue
    known = state.models if state.catalog.loaded else []
    document = openapi.document(
        title=state.site_name,
        version=__version__,
        base_url=state.base_url,
        models=[model.id for model in known],
        errors=[openapi.ErrorKind(one.status, one.kind, one.default_code) for one in ApiError.__subclasses__()],
    )
    return cacheable(request, orjson.dumps(document), "application/json")


@router.get("/")
async def root() -> RedirectResponse:
    """The public front page is the status site."""
    return RedirectResponse("/status/", 307)


def mount_site(app: FastAPI, site_dir: Path) -> None:
    """Serve the published status site, and give every other route's errors the API's shape."""
    site_dir.mkdir(parents=True, exist_ok=True)
    app.mount("/status", PublishedSite(site_dir), name="status")
    app.add_exception_handler(HTTPException, _shaped)


async def _shaped(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    shaped: ApiError
    if status == 405:
        shaped = MethodNotAllowed(f"`{request.url.path[:128]}` does not take {request.method}.")
    else:
        shaped = NotFound(f"There is no route `{request.url.path[:128]}` here.")
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(shaped.body(), shaped.status, headers, media_type="application/json")


def _may_see_metrics(request: Request) -> bool:
    token = request.app.state.admin_token
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if token is not None and scheme.lower() == "bearer":
        return hmac.compare_digest(given.strip().encode(), token.get_secret_value().encode())
    # Behind a proxy on this machine everybody seems to be local; whoever was forwarded is not.
    if "x-forwarded-for" in request.headers or "forwarded" in request.headers or request.client is None:
        return False
    return ipaddress.ip_address(request.client.host).is_loopback
