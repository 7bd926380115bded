"""Service classes and deadlines that clients request."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from registry.errors import BadRequest
from runtime.gateway.context import RequestContext
from runtime.http.hints import context_of_headers, read, text_size, with_caller
from tenants.caller import Caller, ServiceClass

CHAT = "/v1/chat/completions"
CRITICAL, INTERACTIVE, BATCH = ServiceClass
HIGH, USUAL, LOW = (Caller("t", "k", service_class=INTERACTIVE, ceiling=one) for one in ServiceClass)
LAZY = Caller("t", "k", service_class=BATCH, ceiling=CRITICAL)


def given(caller: Caller, body: dict[str, Any], header: str | None = None, path: str = CHAT) -> RequestContext:
    headers = [] if header is None else [(b"x-tier", header.encode())]
    context = with_caller(context_of_headers("r", headers), caller)
    return read(context, path, msgspec.json.encode(body))[0]


@pytest.mark.parametrize(
    ("caller", "body", "header", "expected"),
    [
        (HIGH, {}, None, INTERACTIVE),
        (HIGH, {"service_tier": "priority"}, None, CRITICAL),
        (HIGH, {"service_tier": "fast"}, None, CRITICAL),
        (HIGH, {"service_tier": "auto"}, None, INTERACTIVE),
        (HIGH, {"service_tier": None}, None, INTERACTIVE),
        (HIGH, {"service_tier": "flex"}, None, BATCH),
        (HIGH, {}, "critical", CRITICAL),
        (HIGH, {"service_tier": "flex"}, "critical", CRITICAL),
        (HIGH, {"x-tier": "batch"}, "critical", BATCH),
        (USUAL, {"service_tier": "priority"}, None, INTERACTIVE),
        (USUAL, {}, "Critical", INTERACTIVE),
        (LOW, {}, None, BATCH),
        (LOW, {"x-tier": "critical"}, None, BATCH),
        (LAZY, {}, None, BATCH),
        (LAZY, {"service_tier": "auto"}, None, BATCH),
        (LAZY, {"service_tier": "default"}, None, INTERACTIVE),
        (LAZY, {"service_tier": "standard_only"}, None, BATCH),
        (HIGH, {"service_tier": "standard_only"}, None, INTERACTIVE),
    ],
)
def test_the_class_follows_from_the_caller_and_its_request(
    caller: Caller, body: dict[str, Any], header: str | None, expected: ServiceClass
) -> None:
    assert given(caller, body, header).service_class is expected


def test_an_open_server_grants_the_requested_class() -> None:
    assert context_of_headers("r", [(b"x-tier", b"critical")]).service_class is CRITICAL


def test_a_line_of_a_batch_keeps_the_class_batch() -> None:
    line = RequestContext("r", HIGH, BATCH, source="batch")
    assert read(line, CHAT, b'{"service_tier":"priority"}')[0].service_class is BATCH


@pytest.mark.parametrize("body", [{"service_tier": "gold"}, {"service_tier": 5}, {"x-tier": "gold"}, {"x-tier": []}])
def test_unknown_classes_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as error:
        given(HIGH, body)
    assert error.value.param == next(iter(body))


def test_fields_of_the_class_do_not_reach_an_engine() -> None:
    context = RequestContext("r")
    assert read(context, CHAT, b'{"a":1,"x-tier":"batch","service_tier":"flex"}')[1] == b'{"a":1}'
    assert read(context, "/v1/rerank", b'{"a":1,"x-tier":"batch"}')[1] == b'{"a":1}'
    untouched = b'{"a": 1.0, "service_tier": "flex"}'
    assert read(context, "/v1/rerank", untouched)[1] is untouched
    assert read(context, CHAT, b'{"a":')[1] == b'{"a":'


def test_only_a_service_tier_is_echoed_in_the_answer() -> None:
    assert given(HIGH, {"service_tier": "auto"}).hints.echoes_class
    assert not given(HIGH, {"x-tier": "batch"}).hints.echoes_class


def test_the_size_of_the_work_is_read_from_the_body() -> None:
    context = RequestContext("r")
    picture = b'{"image":"data:image/png;base64,' + b"A" * 5000 + b'","max_tokens":7}'
    hints = read(context, CHAT, picture)[0].hints
    assert (hints.size, hints.most_tokens) == (len(picture) - 5008, 7)
    assert read(context, CHAT, b'{"max_tokens":"many","max_output_tokens":3}')[0].hints.most_tokens == 3
    assert read(context, CHAT, b'{"max_tokens":-1}')[0].hints.most_tokens is None
    assert read(context, CHAT, b'{"n_predict":3}')[0].hints.most_tokens == 3
    assert read(context, CHAT, b"[1]")[0].hints.size == 3


@pytest.mark.parametrize(
    "body",
    [
        '{"url": "data:image/jpeg;base64,\\/9j\\/IMAGE", "text": "a photo"}',
        '{"type": "input_audio", "input_audio": {"data": "IMAGE", "format": "wav"}}',
        '{"type": "image", "source": {"type": "base64", "data": "IMAGE"}}',
        '{"messages": [{"content": "a photo", "images": ["iVBORw0KIMAGE", "\\/9j\\/IMAGE"]}]}',
        '{"type": "image", "source": {"data": "iVBORw0KIMAGE"}, "tools": [{"properties": {"images": {}}}]}',
    ],
)
def test_images_and_sound_are_no_text_in_any_dialect(body: str) -> None:
    data = body.replace("IMAGE", "QUFB+\\/" * 10_000).encode()
    assert 20 < text_size(data) < len(body)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1e9", ""])
def test_an_invalid_timeout_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="X-Request-Timeout"):
        context_of_headers("r", [(b"x-request-timeout", text.encode())])
    assert context_of_headers("r", [(b"x-stainless-read-timeout", text.encode())]).first_by is None


def test_the_deadline_is_the_requests_own_or_the_keys() -> None:
    context = context_of_headers("r", [(b"x-request-timeout", b"30"), (b"x-stainless-read-timeout", b"600")])
    assert (context.deadline, context.first_by) == (context.arrived + 30, context.arrived + 600)
    assert context.begin_by == context.deadline
    hurried = replace(USUAL, timeout=5.0)
    assert with_caller(context, hurried).deadline == context.arrived + 30, "the request's own timeout has priority"
    usual = context_of_headers("r", [(b"x-stainless-read-timeout", b"600")])
    assert with_caller(usual, hurried).deadline == usual.arrived + 5
    assert with_caller(usual, USUAL).deadline is None, "an SDK's read timeout ends no stream"
    assert context_of_headers("r", []).begin_by is None
