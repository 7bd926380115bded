"""Copies of routers for other servers are unpacked unchanged, or refused."""

from collections.abc import Callable

import pytest

from registry.errors import Unfit
from registry.recipes.router import RouterSpec
from routing.routers.content import RouterContent

CONTENT = RouterContent(
    RouterSpec.model_validate({"id": "auto", "targets": [{"name": "chat"}]}), (("intents", bytes(range(256))),)
)


def test_a_packed_router_is_unpacked_unchanged() -> None:
    assert RouterContent.unpacked(CONTENT.packed(), CONTENT.digest) == CONTENT


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:-1] + b"!",
        lambda data: data.replace(b"chat", b"chas"),
        lambda data: data.replace(b"targets", b"targetz"),
        lambda data: data.replace(b"intents", b"intentz"),
    ],
)
def test_changed_bytes_are_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Unfit, match="not a copy of the router") as refused:
        RouterContent.unpacked(change(CONTENT.packed()), CONTENT.digest)
    assert refused.value.code == "wrong_copy"
