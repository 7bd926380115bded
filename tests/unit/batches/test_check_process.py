"""Each fault of an input file is reported with its code and line, within bounds."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from batches.check_process import InputJob, InputPart, InputSummary, check
from batches.intake.checker import InputChecker
from batches.records import BatchFault
from registry.base.child import Child
from registry.errors import EngineFailed
from runtime.http.bodies import ADAPTER_FIELDS

URL = "/v1/chat/completions"
MESSAGES = {"model": "starter-chat", "messages": [{"role": "user", "content": "hi"}]}


def line(custom_id: object = "a", **changes: object) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": URL, "body": MESSAGES, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def job(path: Path, content: bytes, *, url: str | None = URL, most_lines: int = 50_000) -> InputJob:
    path.write_bytes(content)
    return InputJob(
        path=path, urls=(URL, "/v1/embeddings"), url=url, most_lines=most_lines, line_bytes=4 << 20, values=65_536
    )


def read(one: InputJob) -> tuple[list[tuple[str, bytes]], InputSummary]:
    """Return each line's custom id and body, and the summary."""
    data, found = one.path.read_bytes(), list[tuple[str, bytes]]()
    for answer in check(one):
        if isinstance(answer, InputSummary):
            return found, answer
        found += [(at.custom_id, data[at.offset : at.offset + at.length]) for at in answer.lines]
    raise AssertionError("no summary")


def faults(one: InputJob) -> list[BatchFault]:
    return list(read(one)[1].faults)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.jsonl"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n  \r\n\n"], ids=["open", "ended", "blank"])
def test_line_ends_blank_lines_and_a_mark_are_no_faults(path: Path, start: bytes, end: bytes, last: bytes) -> None:
    lines = [line("a"), line("ü" * 3, body={"ü": [1, 2]}), line("c", body={"model": "c"})]
    found, summary = read(job(path, start + end.join((lines[0], b"", lines[1], b"   ", lines[2])) + last))
    bodies = [json.dumps(body).encode() for body in (MESSAGES, {"ü": [1, 2]}, {"model": "c"})]
    assert found == list(zip(("a", "ü" * 3, "c"), bodies, strict=True))
    assert summary == InputSummary(3, (), 0)


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b"null", "invalid_json_line", None),
        (line("\u00e9", body={"x": "\u00e9"}).decode().encode("utf-16"), "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b'{"custom_id":"a","body":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "invalid_json_line", None),
        (b'{"custom_id":"a","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line_too_large", None),
        (line(body={"x": [[]] * 1_000_000}), "line_too_large", None),
        (line(body={"x": "y" * (5 << 20)}), "line_too_large", None),
        (line(...), "missing_required_parameter", "custom_id"),
        (line(None), "missing_required_parameter", "custom_id"),
        (line(""), "missing_required_parameter", "custom_id"),
        (line(7), "invalid_custom_id", "custom_id"),
        (line("x" * 10_000), "invalid_custom_id", "custom_id"),
        (line("a\0b"), "invalid_custom_id", "custom_id"),
        (line(method=...), "missing_required_parameter", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url=...), "missing_required_parameter", "url"),
        (line(url="/v1/embeddings"), "url_mismatch", "url"),
        (line(url="/v1/nothing"), "url_mismatch", "url"),
        (line(url=["/v1/embeddings"]), "url_mismatch", "url"),
        (line(body=...), "missing_required_parameter", "body"),
        (line(body="text"), "invalid_json_line", "body"),
    ],
    ids=range(23),
)
def test_each_fault_has_its_code_and_line(path: Path, content: bytes, code: str, param: str | None) -> None:
    (fault,) = faults(job(path, b"\n" + line("before") + b"\n" + content + b"\n" + line("after")))
    assert (fault.code, fault.line, fault.param) == (code, 3, param)
    assert len(fault.message) < 300


def test_a_repeated_custom_id_is_a_fault(path: Path) -> None:
    one = job(path, b"\n".join((line("a"), line("b"), line("a"), line("\u0061"))))
    assert [(fault.code, fault.line) for fault in faults(one)] == [
        ("duplicate_custom_id", 3),
        ("duplicate_custom_id", 4),
    ]


def test_a_url_of_no_endpoint_is_a_fault_before_the_batch_is_known(path: Path) -> None:
    one = job(path, b"\n".join((line("a"), line("b", url="/v1/embeddings"), line("c", url="/v1/models"))), url=None)
    assert [(fault.code, fault.line) for fault in faults(one)] == [("invalid_url", 3)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\r\n"])
def test_a_file_without_lines_is_a_fault(path: Path, content: bytes) -> None:
    assert [(fault.code, fault.line) for fault in faults(job(path, content))] == [("empty_file", None)]


def test_more_lines_than_a_batch_may_have_are_a_fault(path: Path) -> None:
    content = b"\n".join(line(f"{number}") for number in range(4))
    assert [fault.code for fault in faults(job(path, content, most_lines=3))] == ["too_many_tasks"]
    assert faults(job(path, content, most_lines=4)) == []


def test_the_first_hundred_faults_are_listed_and_all_are_counted(path: Path) -> None:
    _, summary = read(job(path, b"{\n" * 250))
    assert ([fault.line for fault in summary.faults], summary.fault_count) == (list(range(1, 101)), 250)


def test_no_lines_are_returned_after_a_fault(path: Path) -> None:
    found, _ = read(job(path, b"{\n" + line("a")))
    assert found == []


def test_a_models_name_that_no_database_accepts_fails_its_line_later(path: Path) -> None:
    (answer, _) = check(job(path, line("a", body={"model": "a\0b"})))
    assert isinstance(answer, InputPart)
    assert [one.model for one in answer.lines] == [""]


def models(path: Path, *bodies: Any) -> list[str]:
    one = job(path, b"\n".join(line(str(number), body=body) for number, body in enumerate(bodies)))
    return [at.model for answer in check(one) if isinstance(answer, InputPart) for at in answer.lines]


@pytest.mark.parametrize("field", ADAPTER_FIELDS)
def test_the_name_of_a_line_has_the_adapter_that_its_body_names_apart(path: Path, field: str) -> None:
    adapters = ["sql", "", None, 5, "a\0b"]
    assert models(path, *({"model": "m", field: adapter} for adapter in adapters)) == ["m adapter_id=sql", *["m"] * 4]
    assert models(path, {field: "sql"}, {"model": "m adapter_id=sql"}) == ["", ""]


def test_a_line_with_two_adapters_is_left_to_its_parser(path: Path) -> None:
    same, other = ({"model": "m", "adapter_id": "sql", "lora_name": name} for name in ("sql", "tone"))
    assert models(path, same, other) == ["m adapter_id=sql", "m"]


def test_a_model_that_is_no_text_fails_its_line_later(path: Path) -> None:
    one = job(path, b"\n".join((line("a", body={"model": 5}), line("b", body={}), line("c"))))
    models = [at.model for answer in check(one) if isinstance(answer, InputPart) for at in answer.lines]
    assert models == ["", "", "starter-chat"]


def test_the_process_returns_the_functions_results(path: Path) -> None:
    one = job(path, b"\n".join(line(f"id-{number}") for number in range(1234)))

    async def answers() -> list[InputPart | InputSummary]:
        async with InputChecker().check(one) as found:
            return [answer async for answer in found]

    assert asyncio.run(answers()) == list(check(one))


def test_a_process_that_dies_fails_only_its_file(path: Path) -> None:
    one = job(path, line("a"))
    path.unlink()

    async def both() -> InputSummary:
        checker = InputChecker(1)
        with pytest.raises(EngineFailed) as caught:
            await checker.summarise(one)
        assert caught.value.code == "check_failed"
        return await checker.summarise(job(path, line("a")))

    assert asyncio.run(both()) == InputSummary(1, (), 0)


def test_a_check_that_is_left_early_ends_its_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children, start = list[Child](), Child.python

    async def keep(*words: str, **settings: Any) -> Child:
        children.append(await start(*words, **settings))
        return children[-1]

    async def leave() -> int | None:
        async with InputChecker().check(job(path, line("a"))):
            pass
        return children[0].returncode

    monkeypatch.setattr(Child, "python", keep)
    assert asyncio.run(leave()) == -signal.SIGKILL


def test_a_team_waits_for_at_most_one_file_of_another(path: Path) -> None:
    """Another team may submit a hundred large inputs at once."""
    one, ended = job(path, line("a")), list[str]()

    async def all_of_them() -> None:
        checker = InputChecker(1)

        async def check_one(team: str) -> None:
            await checker.summarise(one, team)
            ended.append(team)

        async with asyncio.TaskGroup() as group:
            for team in "aaaaab":
                group.create_task(check_one(team))

    asyncio.run(all_of_them())
    assert ended == ["a", "a", "b", "a", "a", "a"]
