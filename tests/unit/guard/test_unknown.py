"""A path that is not here: what is told of it."""

import re

import pytest

from runtime.http.guard.unknown import INSTEAD, PATHS, unknown

_NAMED = re.compile(r"(?<![\w/])/[a-z0-9_]+(?:/[a-z0-9_]+)*")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/embeddings", "/v1/embeddings"),
        ("/v1/api/chat", "/api/chat"),
        ("/v1/embed", "/embed"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/nothing", None),
    ],
)
def test_where_the_call_is_that_was_meant(path: str, near: str | None) -> None:
    reported = unknown(path).message
    assert repr(path) in reported
    assert f"It is at {near}. " in reported if near else "See /docs." in reported


@pytest.mark.parametrize(
    "path",
    [
        "/v1/images/generations", "/v1/audio/speech", "/tts", "/v1/moderations", "/moderations", "/classify",
        "/predict",
        "/embed_all", "/embed_sparse", "/similarity", "/pooling", "/info", "/infinity/models", "/api/create",
        "/api/blobs/sha256:00", "/models/apply", "/healthz", "/readyz", "/v1/edits", "/v1/engines/x/completions",
        "/v1/threads/x/messages",
    ],
)  # fmt: skip
def test_what_there_is_instead_of_another_servers_call(path: str) -> None:
    reported = unknown(path).message
    assert "See /docs." not in reported
    assert "It is at" not in reported


def test_paths_that_are_named_instead_are_here() -> None:
    for _, reported in INSTEAD:
        assert set(_NAMED.findall(reported.replace("docs/models.md", ""))) <= PATHS, reported
