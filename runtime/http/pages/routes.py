"""Adds the pages to the application. Swagger's files are those of the package fastapi-offline."""

from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from runtime.http.middleware import CurrentGateway
from runtime.http.pages.home import page

ASSETS = "/docs/assets"
FILES = Path(fastapi_offline.__file__).parent / "static"
CLOSED = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


async def home(request: Request, gateway: CurrentGateway) -> Response:
    address = str(request.base_url).rstrip("/")
    return HTMLResponse(page(address, gateway.phase, gateway.overview.status()), headers=CLOSED)


async def reference() -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Roundhouse: reference of the API",
        swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS}/favicon.png",
    )


def add(app: FastAPI) -> None:
    app.add_api_route("/", home, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", reference, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(ASSETS, StaticFiles(directory=FILES), name="assets")
