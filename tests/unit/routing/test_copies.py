"""A router for another server: what is packed is what is unpacked, and nothing else is."""

from collections.abc import Callable

import pytest

from registry.errors import Unfit
from registry.recipes.router import RouterSpec
from routing.routers.content import RouterContent

CONTENT = RouterContent(
    RouterSpec.model_validate({"id": "auto", "targets": [{"name": "chat"}]}), (("intents", bytes(range(256))),)
)


def test_what_is_packed_is_unpacked() -> None:
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
def test_other_bytes_are_no_copy(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Unfit, match="not a copy of the router") as refused:
        RouterContent.unpacked(change(CONTENT.packed()), CONTENT.digest)
    assert refused.value.code == "wrong_copy"
