"""Adapters by path: only below the server's roots, and nobody learns what lies elsewhere."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.types import Base, Checked
from registry.errors import BadRequest, NotFound
from registry.recipes.definition import Recipe
from runtime.http.admin.folders import check_folder
from tests.unit.http.admin.test_adapter_upload import CHAT
from tests.unit.http.fakes import FakeGateway, application


@pytest.fixture
def places(tmp_path: Path) -> SimpleNamespace:
    """`inside` has an adapter, `outside` too; links lead from one to the other."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for place in (inside, outside):
        (place / "adapter").mkdir(parents=True)
        (place / "file").write_text("x")
    (inside / "way-out").symlink_to(outside / "adapter")
    (inside / "loop").symlink_to(inside / "loop")
    (outside / "way-in").symlink_to(inside / "adapter")
    return SimpleNamespace(inside=inside, outside=outside)


def test_folders_below_a_root_may_be_named(places: SimpleNamespace) -> None:
    for path in (places.inside / "adapter", places.inside, places.outside / "way-in"):
        check_folder(str(path), [places.inside], "source.path")
        check_folder(str(path), [places.outside.parent / "nowhere", places.inside], "source.path")


def refused(places: SimpleNamespace) -> list[str]:
    inside, outside = places.inside, places.outside
    found = [
        outside / "adapter", outside / "missing", outside, inside / "missing", inside / "file", inside / "way-out",
        inside / "loop", inside / ".." / "outside" / "adapter", f"{inside}-more", "/", "/etc", "/root", "/etc/passwd",
        "/etc/shadow", "/" + "a" * 5000, f"{inside}/a\0b", "/proc/self/root/etc",
    ]  # fmt: skip
    return [str(path) for path in found]


def told(path: str, root: Path) -> tuple[int, str, str | None, str]:
    with pytest.raises(NotFound) as error:
        check_folder(path, [root], "source.path")
    return error.value.status, error.value.code, error.value.param, error.value.message.partition(" below ")[2]


def test_all_others_get_one_and_the_same_answer(places: SimpleNamespace) -> None:
    answers = {told(path, places.inside) for path in refused(places)}
    assert len(answers) == 1
    assert "--adapter-roots" in answers.pop()[3]


def test_a_relative_path_is_none(places: SimpleNamespace) -> None:
    with pytest.raises(BadRequest, match="absolute"):
        check_folder("adapter", [places.inside], "lora_path")


async def test_both_calls_look_at_the_roots_first(places: SimpleNamespace, tmp_path: Path) -> None:
    read: list[str] = []

    async def look(*arguments: Any, **_: Any) -> Checked:
        base, source = (a for a in arguments if not isinstance(a, str))
        assert isinstance(base, Base)
        read.append(source.path)
        raise BadRequest("it was read", code="read")

    service = SimpleNamespace(validate=look, register=look)
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], service=service, adapter_roots=(places.inside,))
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

        async def codes(path: str) -> set[str]:
            by_path = {"name": "tune", "base": "chat", "source": {"path": path}}
            answers = [
                await client.post("/v1/adapters", json=by_path),
                await client.post("/v1/adapters?dry_run=true", json=by_path),
                await client.post("/v1/load_lora_adapter", json={"lora_name": "tune", "lora_path": path}),
            ]
            return {answer.json()["error"]["code"] for answer in answers}

        for path in refused(places):
            assert await codes(path) == {"source_not_found"}
        assert read == []
        assert await codes(str(places.inside / "adapter")) == {"read"}
