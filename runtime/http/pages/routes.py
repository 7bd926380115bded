"""Add the pages to the application. Swagger's files are fastapi-offline's."""

from importlib.metadata import version
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from runtime.http.admin.answers import json_answer

ASSETS = "/docs/assets"
FILES = Path(fastapi_offline.__file__).parent / "static"


async def home(request: Request) -> Response:
    """Send a browser to the console; tell others what this is, and no more."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("console/", 307)
    places = {"console": "/console", "docs": "/docs", "openapi": "/openapi.json", "models": "/v1/models"}
    return json_answer({"name": "Roundhouse", "version": version("roundhouse"), **places})


async def reference() -> Response:
    """The API reference, with relative links: a proxy may put a path before all of ours."""
    return get_swagger_ui_html(
        openapi_url="./openapi.json",
        title="Roundhouse: reference of the API",
        swagger_js_url=f".{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f".{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f".{ASSETS}/favicon.png",
    )


def add(app: FastAPI) -> None:
    app.add_api_route("/", home, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", reference, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(ASSETS, StaticFiles(directory=FILES), name="assets")
