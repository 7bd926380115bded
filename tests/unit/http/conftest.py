"""The application over a scripted gateway, and a client that calls it without a network."""

from collections.abc import AsyncIterator
from pathlib import Path

import cohere
import httpx
import httpx2
import openai
import pytest
from fastapi import FastAPI

from tests.unit.http.fakes import FakeGateway, application


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    return FakeGateway(tmp_path)


@pytest.fixture
def app(gateway: FakeGateway) -> FastAPI:
    return application(gateway)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def openai_client(app: FastAPI) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
    async with openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http, max_retries=0) as client:
        yield client


@pytest.fixture
async def cohere_client(app: FastAPI) -> AsyncIterator[cohere.AsyncClientV2]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as http:
        yield cohere.AsyncClientV2(api_key="x", base_url="http://test", httpx_client=http)
