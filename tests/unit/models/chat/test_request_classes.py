"""Errors for requests that vLLM's request classes cannot read."""

import json
from typing import Any, Literal

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator
from starlette.requests import Request

from models.chat.vllm.request_classes import _refused, _refused_part, describe


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Other(BaseModel):
    type: Literal["other"]


class ChatMessage(BaseModel):
    role: str
    content: str | list[Part]


class ChatBody(BaseModel):
    messages: list[ChatMessage]
    stop: str | list[str] | None = None
    n: int = 1

    @field_validator("n")
    @classmethod
    def _some(cls, value: int) -> int:
        if value < 1:
            raise ValueError("n must be at least 1.")
        return value


HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "messages", "messages: Field required."),
        ({"messages": "hi"}, "messages", "messages: Input should be a valid list."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role: Field required."),
        ({"messages": [HELLO], "n": 0}, "n", "n: n must be at least 1."),
        (
            {"messages": [HELLO], "stop": 4},
            "stop",
            "stop: Input should be a valid string; or: Input should be a valid list.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "messages[0].content[0].text: Field required.",
        ),
    ],
)
def test_a_fault_is_described_with_its_place(body: Any, param: str, message: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        ChatBody.model_validate(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in wrong.value.errors()]
    assert describe(errors, body) == (message, param)


class Cat(BaseModel):
    type: Literal["cat"]
    name: str
    age: int


class Dog(BaseModel):
    type: Literal["dog"]
    name: str
    breed: str


class Stone(BaseModel):
    weight: int
    name: str


@pytest.mark.parametrize(
    ("pet", "message"),
    [
        ({"type": "cat", "name": "a", "age": []}, "pet.age: Input should be a valid integer."),
        ({"type": "cat", "name": 5, "age": 1}, "pet.name: Input should be a valid string."),
        ({"type": "dog", "name": "a"}, "pet.breed: Field required. pet.weight: Field required."),
        ({"type": "bird", "name": "a", "weight": []}, "pet.weight: Input should be a valid integer."),
        ({"name": 5, "weight": 1}, "pet.name: Input should be a valid string."),
    ],
)  # fmt: skip
def test_a_value_of_a_union_is_checked_as_its_own_kind(pet: Any, message: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(Cat | Dog | Stone).validate_python(pet)
    errors = [{**error, "loc": ("body", "pet", *error["loc"])} for error in wrong.value.errors()]
    assert describe(errors, {"pet": pet})[0] == message


def test_a_value_of_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(Cat | Dog).validate_python({"type": "bird"})
    errors = [{**error, "loc": ("body", "pet", *error["loc"])} for error in wrong.value.errors()]
    assert describe(errors, {"pet": {"type": "bird"}}) == (
        "pet.type: Input should be 'cat'; or: Input should be 'dog'.",
        "pet.type",
    )


async def test_a_call_that_is_read_later_is_named_by_its_place_among_the_calls() -> None:
    """The error is raised within the request's class, so that FastAPI reports it as a fault of the body."""
    where = ("body", 0, "ChatCompletionMessageFunctionToolCallParam", "function", "arguments")
    fault = {"loc": where, "type": "string_type", "msg": "Input should be a valid string", "input": 5}
    messages = [
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}]}
        for arguments in ("", "{}", 5)
    ]
    for body, place in (({"messages": messages}, "messages[2]."), ({"messages": []}, "")):
        answer = await _refused(Request({"type": "http"}), RequestValidationError([fault], body=body))
        error = json.loads(bytes(answer.body))["error"]
        assert error["param"] == f"{place}tool_calls[0].function.arguments"


def sent(body: Any) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    return Request({"type": "http"}, receive)


async def test_a_part_that_is_read_alone_is_named_by_its_message_and_place() -> None:
    part = {"type": "text", "text": 5}
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(Part).validate_python(part)
    messages = [HELLO, {"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    error = json.loads(bytes((await _refused_part(sent({"messages": messages}), wrong.value)).body))["error"]
    assert error["param"] == "messages[1].content[1].text"


@pytest.mark.parametrize(
    ("part", "place"),
    [({"type": "movie"}, "type"), ({"type": "text"}, "text"), ({"type": "text", "text": None}, "text")],
)
async def test_a_part_that_is_read_later_is_named_by_its_message_and_place(part: Any, place: str) -> None:
    text = {"type": "text", "text": "x"}
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(list[Part | Other]).validate_python([text, part])
    messages = [HELLO, {"role": "user", "content": [text, text]}, {"role": "user", "content": [text, part]}]
    for body, holder in (({"messages": messages}, "messages[2]."), ({"prompt": "x"}, "")):
        answer = await _refused_part(sent(body), wrong.value)
        error = json.loads(bytes(answer.body))["error"]
        assert error["param"] == f"{holder}content[1].{place}"
        assert error["message"].startswith(f"{holder}content[1].{place}: ")
        assert "pydantic" not in error["message"]


def test_only_the_first_of_many_faults_are_described() -> None:
    body = {"messages": [{}] * 500}
    with pytest.raises(ValidationError) as wrong:
        ChatBody.model_validate(body)
    message, param = describe([{**error, "loc": ("body", *error["loc"])} for error in wrong.value.errors()], body)
    assert message == "messages[0].role: Field required. messages[0].content: Field required."
    assert param == "messages[0].role"
