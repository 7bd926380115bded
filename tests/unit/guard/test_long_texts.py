"""Errors that repeat a client's text are cut."""

import json
from pathlib import Path

import httpx
import pytest

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.base.wording import cut
from registry.errors import BadRequest, Unfit
from runtime.http import errors as http_errors
from runtime.http.errors import Dialect
from tests.unit.http.fakes import FakeGateway, application


@pytest.mark.parametrize("dialect", list(Dialect))
def test_no_error_is_longer_than_four_kilobytes(dialect: Dialect) -> None:
    for letter in ("a", "€", '"', "\ud800"):
        error = BadRequest("no: " + letter * 5_000_000, param=letter * 5_000_000)
        text = http_errors.encode(error, dialect).decode()
        longest = max(len(value.encode()) for value in _strings(json.loads(text)))
        assert longest <= http_errors.LONGEST
        assert "…" in text


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _strings(inner)]
    return [value] if isinstance(value, str) else []


def test_a_cut_text_ends_with_a_whole_letter() -> None:
    assert cut("ab", 2) == "ab"
    assert cut("abcde", 4) == "a…"
    assert cut("€€€", 8) == "€…"


def test_faults_are_cut_and_counted() -> None:
    faults = http_errors.body(Unfit("no", ["x" * 2000] * 50))["error"]["faults"]
    assert [len(fault) for fault in faults[:-1]] == [2000]
    assert faults[-1] == "… and 49 more"
    assert http_errors.body(Unfit("no", ["x", "y"]))["error"]["faults"] == ["x", "y"]


@pytest.mark.parametrize(("path", "kind"), [("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", None)])
async def test_texts_in_an_engines_errors_are_cut_too(tmp_path: Path, path: str, kind: str | None) -> None:
    refusal = {"error": {"message": "no " + "x" * 4_600_000, "type": "BadRequestError", "param": "p", "code": 400}}
    gateway = FakeGateway(tmp_path)
    gateway.links["chat"].script = lambda _: (
        ResponseStart(status=400, content_type="application/json"),
        Chunk(data=json.dumps(refusal).encode()),
        ResponseEnd(usage=Usage()),
    )
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(path, json={"model": "chat", "messages": []})
    assert answer.status_code == 400
    assert len(answer.content) <= 4096
    error = answer.json()["error"]
    assert error["message"].startswith("no xxx")
    if kind is not None:
        assert (error["type"], error["param"], error["code"]) == (kind, "p", "invalid_value")
