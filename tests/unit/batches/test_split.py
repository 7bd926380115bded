"""A body with requests becomes an input file or is refused with its first fault, and only JSON is accepted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches.intake.checker import InputChecker
from batches.intake.split import REST_BYTES, SplitJob, SplitSummary, split

PARAMS: dict[str, Any] = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": 'a "[{,:}]\\" b\n'}]}


def job(folder: Path, content: bytes, form: Any = "messages", **more: Any) -> SplitJob:
    path = folder / "body"
    path.write_bytes(content)
    bounds = {"most": 100, "line_bytes": 1 << 20, "values": 1000, **more}
    return SplitJob(path=path, out=folder / "out", form=form, urls=("/v1/messages", "/v1/embeddings"), **bounds)


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "out").read_bytes().splitlines()]


def body(*custom_ids: str, **more: Any) -> dict[str, Any]:
    return {**more, "requests": [{"custom_id": one, "params": PARAMS} for one in custom_ids]}


@pytest.mark.parametrize("indent", [None, 2])
def test_each_request_becomes_a_line(tmp_path: Path, indent: int | None) -> None:
    content = json.dumps(body("a", "b", "c", other={"x": [1, "]"]}), indent=indent).encode()
    found = split(job(tmp_path, content))
    assert (found.lines, found.fault, json.loads(bytes(found.rest))) == (3, "", {"other": {"x": [1, "]"]}})
    expected = {"method": "POST", "url": "/v1/messages", "body": PARAMS}
    assert lines(tmp_path) == [{"custom_id": one, **expected} for one in "abc"]


def test_our_short_form_needs_no_ids(tmp_path: Path) -> None:
    content = json.dumps({"requests": [{"body": PARAMS}, {"body": {}, "custom_id": "x y"}], "url": "/v1/embeddings"})
    found = split(job(tmp_path, content.encode(), "requests"))
    assert (found.lines, json.loads(bytes(found.rest))) == (2, {"url": "/v1/embeddings"})
    assert {line["url"] for line in lines(tmp_path)} == {"/v1/embeddings"}
    assert [line["custom_id"] for line in lines(tmp_path)] == ["0", "x y"]


def test_a_number_that_is_another_requests_id_is_not_used_twice(tmp_path: Path) -> None:
    content = json.dumps({"requests": [{"body": {}, "custom_id": "1"}, {"body": {}}], "url": "/v1/embeddings"})
    found = split(job(tmp_path, content.encode(), "requests"))
    assert (found.param, "requests.1 needs a custom_id" in found.fault) == ("requests.1", True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", "x" * REST_BYTES), ("x" * REST_BYTES, "n"), ("ä" * (REST_BYTES // 2), "n")],
    ids=["value", "name", "name of letters of two bytes"],
)
def test_the_size_of_the_other_fields_is_bounded(tmp_path: Path, name: str, value: str) -> None:
    """The server holds them in memory, and reads them as one line of the process."""
    found = split(job(tmp_path, json.dumps(body("a", **{name: value})).encode()))
    assert (found.lines, found.rest, "fields other than" in found.fault) == (0, msgspec.Raw(b"{}"), True)


def test_without_requests_the_other_fields_are_returned(tmp_path: Path) -> None:
    found = split(job(tmp_path, b' {"url": "/v1/messages", "n": 1} ', "requests"))
    assert (found.lines, found.fault, json.loads(bytes(found.rest))) == (0, "", {"url": "/v1/messages", "n": 1})


def test_an_empty_object_has_no_fields(tmp_path: Path) -> None:
    assert split(job(tmp_path, b"{}")) == SplitSummary(0, msgspec.Raw(b"{}"))


REQUEST = json.dumps({"custom_id": "a", "params": {}})


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ('{"requests": []}', "requests"),
        ('{"requests": [{}]}', "requests.0"),
        (f'{{"requests": [{REQUEST}, {REQUEST}]}}', "requests.1.custom_id"),
        ('{"requests": [{"custom_id": "a b", "params": {}}]}', "requests.0.custom_id"),
        ('{"requests": [{"custom_id": "", "params": {}}]}', "requests.0.custom_id"),
        (f'{{"requests": [{{"custom_id": "{"x" * 65}", "params": {{}}}}]}}', "requests.0.custom_id"),
        ('{"requests": [{"custom_id": 1, "params": {}}]}', "requests.0"),
        ('{"requests": [{"custom_id": "a", "params": []}]}', "requests.0.params"),
        ('{"requests": [{"custom_id": "a", "params": null}]}', "requests.0.params"),
        ('{"requests": [{"custom_id": "a", "params": {}, "x": 1}]}', "requests.0"),
        ('{"requests": [null]}', "requests.0"),
        ('{"requests": [1, 2]}', "requests.0"),
        (f'{{"requests": [{REQUEST},]}}', "requests.1"),
        (f'{{"requests": [,{REQUEST}]}}', "requests.0"),
        ('{"requests": {}}', "requests"),
        ('{"requests": null}', "requests"),
        (f'{{"requests": [{REQUEST} 1]}}', "requests.0"),
        (f'{{"requests": [{REQUEST}, {{"custom_id": ",]", "params": {{"x": tru}}}}]}}', "requests.1"),
        ('{"requests": [{"custom_id": "a", "params": {"x": [1}}}]}', "requests.0"),
        (f'{{"requests": x[{REQUEST}]}}', ""),
        (f'{{"requests": [{REQUEST}]x}}', ""),
        (f'{{"requests": [{REQUEST}]}} x', ""),
        (f'{{"requests": [{REQUEST}]', ""),
        (f'{{"requests": [{REQUEST}', "requests.0"),
        (f'{{"x": [[1], 2], "requests": [{REQUEST}, {{"custom_id": "a', "requests.1"),
        (f'{{"requests": [{REQUEST}]]', ""),
        (f'{{requests: [{REQUEST}]}}', ""),
        (f'{{"requests" [{REQUEST}]}}', None),
        ('{"a": 1, }', ""),
        ('{"a" 1}', ""),
        ('{, "a": 1}', ""),
        ('{"a": 1, "b"}', ""),
        ('{"a": }', ""),
        ('{"a"', ""),
        ('{"a": "b', ""),
        ("[]", ""),
        ("null", ""),
        ("", ""),
        ('{"x": "' + "y" * 70_000 + '"}', ""),
        ('{"requests": [{"custom_id": "a", "params": {"x": "' + "y" * (1 << 20) + '"}}]}', "requests.0"),
        ('{"requests": [{"custom_id": "a", "params": {"x": "' + "y" * (3 << 20) + '"}}]}', "requests.0"),
        ('{"requests": [{"custom_id": "a", "params": {"x": [' + "[]," * 2000 + "1]}}]}", "requests.0"),
        ('{"requests": [{"custom_id": "a", "params": {"x": ' + "[" * 900_000 + "]" * 900_000 + "}}]}", ""),
    ],
    ids=range(43),
)  # fmt: skip
def test_faulty_bodies_are_refused(tmp_path: Path, content: str, param: str | None) -> None:
    found = split(job(tmp_path, content.encode()))
    assert found.fault
    assert len(found.fault) < 500
    if param is not None:
        assert found.param == param


@pytest.mark.parametrize("url", ['"/v1/models"', "5", "null", "{}", "1e400"])
def test_urls_of_other_endpoints_are_refused(tmp_path: Path, url: str) -> None:
    found = split(job(tmp_path, f'{{"requests": [{{"body": {{}}}}], "url": {url}}}'.encode(), "requests"))
    assert found.param == "url"


def test_an_id_that_no_database_accepts_is_refused(tmp_path: Path) -> None:
    content = json.dumps({"requests": [{"custom_id": "a\0b", "body": {}}], "url": "/v1/embeddings"})
    assert split(job(tmp_path, content.encode(), "requests")).param == "requests.0.custom_id"


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    found = split(job(tmp_path, json.dumps(body("a", "b", "c")).encode(), most=2))
    assert (found.param, "several batches" in found.fault) == ("requests", True)


def test_requests_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    """The process that reads them has bounded memory."""
    content = b'{"requests": [' + b",".join([b'{"body":{}}'] * 4_000_000) + b'], "url": "/v1/messages"}'
    found = asyncio.run(InputChecker().split(job(tmp_path, content, "requests")))
    assert (found.param, "several batches" in found.fault) == ("requests", True)


@given(st.binary(max_size=60) | st.text('[]{},:"\\ 1arequests', max_size=60).map(str.encode))
def test_any_bytes_are_refused_or_become_json(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    found = split(job(tmp_path_factory.mktemp("split"), content))
    if not found.fault:
        assert isinstance(json.loads(content), dict)


@given(st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5)))
def test_other_fields_are_returned_unchanged(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]) -> None:
    fields.pop("requests", None)
    found = split(job(tmp_path_factory.mktemp("split"), json.dumps(fields).encode()))
    assert json.loads(bytes(found.rest)) == fields


def test_the_process_returns_the_functions_results(tmp_path: Path) -> None:
    one = job(tmp_path, json.dumps(body("a", "b")).encode())
    assert asyncio.run(InputChecker().split(one)) == split(one)
