"""Whole floats are accepted as integers, since programs with a single number type write 8192.0 for 8192."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from pydantic import Field, TypeAdapter, ValidationError

from models.chat.requests import limits
from models.chat.requests.request import CHAT, ChatRequest
from registry.errors import BadRequest
from runtime.http.bodies import WHOLE, convert, decode, with_integers
from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody
from runtime.http.ollama.bodies import OllamaChatBody, OllamaEmbedBody, OllamaOptions
from runtime.http.rerank.bodies import CohereBody, JinaBody, ScoreBody
from runtime.http.text_generation.bodies import GenerateBody, GenerateParameters

TEXT = {"model": "m", "input": "a"}
RERANK = {"model": "m", "query": "q", "documents": ["d"]}
REQUIRED: dict[type[msgspec.Struct], dict[str, Any]] = {
    OllamaOptions: {}, OllamaChatBody: {"model": "m"}, OllamaEmbedBody: TEXT, EmbeddingsBody: TEXT,
    EmbedBody: {"inputs": "a"}, JinaBody: RERANK, CohereBody: RERANK, ScoreBody: {}, GenerateParameters: {},
}  # fmt: skip


def integers() -> Iterator[tuple[type[msgspec.Struct], str, int]]:
    """Yield each integer field of each body with its least value."""
    for kind in REQUIRED:
        described = inspect.type_info(kind)
        assert isinstance(described, inspect.StructType)
        for field in described.fields:
            types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            for type_ in types:
                inner = type_.type if isinstance(type_, inspect.Metadata) else type_
                if isinstance(inner, inspect.IntType):
                    yield kind, field.encode_name, inner.ge if inner.ge and inner.ge > 0 else 1


@pytest.mark.parametrize(("kind", "name", "least"), list(integers()))
def test_every_integer_field_accepts_whole_floats_only(kind: type[msgspec.Struct], name: str, least: int) -> None:
    body = {**REQUIRED[kind], name: least}
    whole = {**body, name: float(least)}
    assert decode(msgspec.json.encode(whole), kind) == convert(whole, kind) == convert(body, kind)
    for wrong in (least + 0.5, str(least), 1e300):
        with pytest.raises(BadRequest, match=name):
            decode(msgspec.json.encode({**body, name: wrong}), kind)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [500, 700, 900])
def test_a_value_that_only_msgspec_can_follow_is_a_clients_fault(begin: str, end: str, depth: int) -> None:
    body = '{"model": "m", "input": %s}' % (begin * depth + "1" + end * depth)
    with pytest.raises(BadRequest):
        decode(body.encode(), EmbeddingsBody)


def test_nested_integers_may_be_whole_floats() -> None:
    assert decode(b'{"inputs": "a", "parameters": {"max_new_tokens": 5e0}}', GenerateBody) == decode(
        b'{"inputs": "a", "parameters": {"max_new_tokens": 5}}', GenerateBody
    )
    assert decode(b'{"model": "m", "input": [[1.0, 2]]}', EmbeddingsBody).input == [[1, 2]]
    with pytest.raises(BadRequest, match="JSON object"):
        decode(b"[1.0]", EmbedBody)


def test_settings_and_the_chat_engines_fields_accept_whole_floats() -> None:
    number = TypeAdapter(Annotated[int, Field(strict=True), WHOLE])
    assert number.validate_python(8.0) == 8
    for wrong in (True, "8", 8.5):
        with pytest.raises(ValidationError):
            number.validate_python(wrong)
    request = ChatRequest(CHAT, b'{"max_tokens": 20.0}')
    assert limits.token_limits(request) == {"max_tokens": 20}
    request = ChatRequest(CHAT, b'{"thinking_token_budget": 20.0, "seed": -1.00, "temperature": 0.5, "stop": "1.0"}')
    request.write_integers()
    assert request.body == b'{"thinking_token_budget":20,"seed":-1,"temperature":0.5,"stop":"1.0"}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_other_values_are_unchanged(value: Any) -> None:
    assert with_integers(value) == value
