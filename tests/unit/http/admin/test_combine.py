"""`POST /v1/adapters/combine`: what its process is asked for, what is registered, what is refused at once."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.compose import model
from adapters.compose.jobs import Combine, Merge, WeightedAdapter
from adapters.types import Base, ComposedAdapter
from registry.bounds import Bounds
from registry.errors import EngineFailed, NotFound, Unavailable
from registry.records import Adapter, AdapterKey, NewVersion, RegisteredVersion
from registry.state.database import State
from registry.storage.reserve import DiskReserve
from runtime.gateway import combine
from runtime.gateway.combine import Combination
from runtime.gateway.launch.merged import merged_sizes, tidy_merged
from tenants.caller import Caller, Scope
from tenants.limits.records import Kind, Limit
from tests.eventually import PATIENCE
from tests.unit.http.fakes import FakeGateway
from tests.unit.registry.makers import digest, recipe

PATH = "/v1/adapters/combine"
PARTS = [{"name": "one", "weight": 0.7}, {"name": "small:two@v1", "weight": -0.3}]


class Service:
    """Registers in the state without reading a file."""

    notes = SimpleNamespace(of=lambda digest: ())

    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder, self.incoming, self.bounds = state, folder, folder / "incoming", Bounds()
        self.reserve = DiskReserve(folder)

    async def ready(self, digest: str) -> None:
        return None

    def list(self, base: str | None = None) -> "list[Adapter]":
        return [adapter for adapter in self.state.adapters.all() if base in (None, adapter.key.base)]

    def stored(self, version: Any) -> Any:
        return SimpleNamespace(path=self.folder / version.key.name, digest=version.digest, rank=8, bytes=100)

    async def register(
        self, name: str, base: Base, source: ComposedAdapter, *, alias: str | None, **_: Any
    ) -> RegisteredVersion:
        assert (source.path / "made").read_text() == "here"
        made = NewVersion(digest(9), 16, 100, source.words)
        return self.state.adapters.register(AdapterKey(base.id, name), made, alias)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "data") as state:
        for number, (base, name) in enumerate((("small", "one"), ("small", "two"), ("other", "far")), 1):
            state.adapters.register(AdapterKey(base, name), NewVersion(digest(number), 8, 100, "test"))
        service = Service(state, tmp_path)
        yield FakeGateway(tmp_path, [recipe("small"), recipe("other")], state=state, service=service)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Combine]:
    """What the process was asked for; it writes one file and is done."""
    found: list[Combine] = []
    monkeypatch.setattr(combine, "compose", _process(found))
    return found


def _process(found: list[Combine], gate: asyncio.Event | None = None) -> Callable[[Combine, float], Awaitable[None]]:
    async def process(job: Combine, seconds: float) -> None:
        found.append(job)
        if gate is not None:
            await gate.wait()
        (job.out / "made").write_text("here")

    return process


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_part_deleted_meanwhile_is_reported(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """Only that: another reason stays what it is."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async def process(job: Combine, seconds: float) -> None:
        if deleted:
            job.parts[1].folder.rmdir()
        raise EngineFailed("FileNotFoundError", code="compose_failed")

    monkeypatch.setattr(combine, "compose", process)
    answer = await client.post(PATH, json={"name": "both", "adapters": PARTS})
    error = answer.json()["error"]
    if deleted:
        assert (answer.status_code, error["code"]) == (409, "adapter_deleted")
        assert "small:two@v1" in error["message"]
    else:
        assert (answer.status_code, error["code"]) == (500, "compose_failed")


async def test_two_become_one(
    client: httpx.AsyncClient, gateway: FakeGateway, jobs: list[Combine], tmp_path: Path
) -> None:
    answer = await client.post(PATH, json={"name": "both", "adapters": PARTS, "alias": "prod"})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/v1/adapters/both"
    reported = answer.json()
    assert (reported["name"], reported["base"], reported["registered"], reported["new"]) == (
        "both",
        "small",
        "v1",
        True,
    )
    assert (reported["source"], reported["aliases"]) == ("0.7 × one@v1 + -0.3 × two@v1, cat", {"prod": "v1"})
    (job,) = jobs
    assert job.parts == (
        WeightedAdapter(folder=tmp_path / "one", weight=0.7),
        WeightedAdapter(folder=tmp_path / "two", weight=-0.3),
    )
    assert (job.base.id, job.kind, job.rank) == ("small", "cat", 16)
    assert gateway.names.catalog.resolve("both@prod").version is not None, "it can be asked for at once"
    assert not list(gateway.service.incoming.iterdir())
    again = await client.post(PATH, json={"name": "both", "adapters": PARTS})
    assert (again.status_code, again.json()["new"]) == (200, False)


async def test_a_full_team_combines_nothing(
    client: httpx.AsyncClient, gateway: FakeGateway, jobs: list[Combine]
) -> None:
    gateway.storage.replace([Limit("lim_1", "team", "default", Kind.ADAPTERS, 3)])
    answer = await client.post(PATH, json={"name": "both", "adapters": PARTS})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "storage_limit_exceeded"), answer.text
    assert jobs == []


async def test_method_density_and_seed(client: httpx.AsyncClient, jobs: list[Combine]) -> None:
    body = {"name": "both", "adapters": PARTS, "method": "dare", "density": 0.2, "seed": 7}
    answer = await client.post(PATH, json=body)
    assert answer.json()["source"] == "0.7 × one@v1 + -0.3 × two@v1, dare_linear_svd, density 0.2, seed 7"
    assert (jobs[0].kind, jobs[0].density, jobs[0].seed) == ("dare_linear_svd", 0.2, 7)


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "one adapter": ({"adapters": PARTS[:1]}, 400, "adapters"),
    "nine adapters": ({"adapters": PARTS[:1] * 9}, 400, "adapters"),
    "no weight": ({"adapters": [PARTS[0], {"name": "two"}]}, 400, "adapters.1.weight"),
    "a huge weight": ({"adapters": [PARTS[0], {"name": "two", "weight": 1e9}]}, 400, "adapters.1.weight"),
    "unknown": ({"adapters": [PARTS[0], {"name": "nobody", "weight": 1}]}, 404, "model"),
    "a model": ({"adapters": [PARTS[0], {"name": "small", "weight": 1}]}, 400, "adapters.1.name"),
    "another base": ({"adapters": [PARTS[0], {"name": "far", "weight": 1}]}, 400, "adapters"),
    "a bad name": ({"name": "../x"}, 400, "name"),
    "a model's name": ({"name": "other"}, 409, "name"),
    "a bad alias": ({"alias": "v3"}, 400, "alias"),
    "a weight in words": ({"adapters": [PARTS[0], {"name": "two", "weight": "0.3"}]}, 400, "adapters.1.weight"),
    "a bad method": ({"method": "slerp"}, 400, "method"),
    "no density": ({"method": "ties", "density": 0}, 400, "density"),
    "a field too many": ({"base": "small"}, 400, "base"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_wrong_request_is_refused_before_any_work(
    kind: str, client: httpx.AsyncClient, jobs: list[Combine]
) -> None:
    change, status, param = BAD[kind]
    answer = await client.post(PATH, json={"name": "both", "adapters": PARTS, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert jobs == []


async def test_one_at_a_time(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, jobs = asyncio.Event(), list[Combine]()
    monkeypatch.setattr(combine, "compose", _process(jobs, gate))
    body = {"name": "both", "adapters": PARTS}
    first = asyncio.create_task(client.post(PATH, json=body))
    second = asyncio.create_task(client.post(PATH, json=body))
    done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = (task.result() for task in done)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "combine_busy")
    assert int(refused.headers["retry-after"]) > 0
    gate.set()
    answers = sorted([(await first).status_code, (await second).status_code])
    assert answers == [201, 503]
    assert (await client.post(PATH, json=body)).status_code == 200


async def test_teams_take_turns(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a team that begins one job after another would keep all others out."""
    gate, jobs = asyncio.Event(), list[Combine]()
    monkeypatch.setattr(combine, "compose", _process(jobs, gate))
    combiner, callers = gateway.gateway.services.combiner, [Caller(team=team) for team in ("a", "b")]
    gateway.state.adapters.share(AdapterKey("small", "one"), True)
    gateway.state.adapters.share(AdapterKey("small", "two"), True)
    gateway.names.refresh()

    def begin(caller: Caller, seed: int) -> asyncio.Task[object]:
        parts = (("default/one", 0.7), ("default/two", 0.3))
        return asyncio.create_task(combiner.combine(Combination("both", parts, "linear", 0.5, seed=seed), caller))

    first = begin(callers[0], 1)
    while not jobs:
        await asyncio.sleep(0)
    waiting = begin(callers[1], 2)
    with pytest.raises(Unavailable, match="Another combination"):
        await begin(callers[0], 3)
    gate.set()
    await first
    last = begin(callers[0], 4)
    await asyncio.gather(waiting, last)
    assert [job.seed for job in jobs] == [1, 2, 4]


async def test_a_job_waits_for_others_only_for_a_while(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combine, "WAIT", 0.0)
    gateway.state.adapters.share(AdapterKey("small", "one"), True)
    gateway.names.refresh()
    combiner, caller = gateway.gateway.services.combiner, Caller(team="a")
    async with combiner._turn("b"):
        with pytest.raises(Unavailable, match="Another combination"):
            await combiner.merge("default/one", caller, gateway.settings.data_dir)
    async with combiner._turn("a"):
        pass


def test_what_a_merge_left_that_was_killed_goes_with_the_next_start(tmp_path: Path) -> None:
    """It may have the size of a model."""
    half, whole = tmp_path / ".team+small-one-abc-1234", tmp_path / "team+small-one-abc"
    for folder in (half, whole):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x")
    tidy_merged(tmp_path)
    assert (half.exists(), whole.exists()) == (False, True)
    assert merged_sizes(tmp_path)("team") == {whole.name: 1}


def _room(_base: Path, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return 3


async def test_what_would_touch_the_reserve_is_refused_before_any_work(
    client: httpx.AsyncClient,
    gateway: FakeGateway,
    jobs: list[Combine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway.service.reserve = DiskReserve(tmp_path, 1 << 60)
    gateway.entries["small"].path = tmp_path
    monkeypatch.setattr(combine, "_make_room", _room)
    for path, body in ((PATH, {"name": "both", "adapters": PARTS}), ("/v1/adapters/one/merge", None)):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full"), answer.text
        assert int(answer.headers["retry-after"]) == 60
    assert jobs == []
    assert not list((gateway.settings.data_dir / "merged").iterdir())


async def test_a_base_that_has_changed_is_merged_anew(
    client: httpx.AsyncClient, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gateway.entries["small"].path = tmp_path / "base"
    base.mkdir()
    weights = base / "model.safetensors"

    async def merged(base: Path, adapter: Path, out: Path, *, trusted: bool) -> int:
        out.mkdir()
        return (out / "model.safetensors").write_bytes(weights.read_bytes())

    monkeypatch.setattr(combine, "merge_model", merged)
    monkeypatch.setattr(combine, "_make_room", _room)
    outputs = []
    for content in (b"old", b"old", b"new"):
        weights.write_bytes(content)
        answer = await client.post("/v1/adapters/one/merge")
        assert answer.status_code == 200, answer.text
        outputs.append(Path(answer.json()["output"]))
        assert (outputs[-1] / "model.safetensors").read_bytes() == content
    assert outputs[0] == outputs[1] != outputs[2]


async def test_a_base_that_changes_while_it_is_merged_leaves_no_merged_model(
    client: httpx.AsyncClient, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be found again under the revision that it began with."""
    base = gateway.entries["small"].path = tmp_path / "base"
    base.mkdir()
    weights = base / "model.safetensors"
    weights.write_bytes(b"old")

    async def merged(base: Path, adapter: Path, out: Path, *, trusted: bool) -> int:
        out.mkdir()
        weights.write_bytes(b"new")
        return weights.write_bytes(b"old")

    monkeypatch.setattr(combine, "merge_model", merged)
    monkeypatch.setattr(combine, "_make_room", _room)
    answer = await client.post("/v1/adapters/one/merge")
    assert (answer.status_code, answer.json()["error"]["message"][:36]) == (503, "The files of model 'small' changed w")
    assert not list((gateway.settings.data_dir / "merged").iterdir())


async def test_the_longest_names_are_merged_too(
    client: httpx.AsyncClient, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "n" * 64
    gateway.state.adapters.register(AdapterKey("small", name), NewVersion(digest(7), 8, 100, "test"))
    gateway.names.refresh()
    base = gateway.entries["small"].path = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"x")
    monkeypatch.setattr(combine, "LONGEST_NAME", 40)

    async def merged(base: Path, adapter: Path, out: Path, *, trusted: bool) -> int:
        out.mkdir()
        return 1

    monkeypatch.setattr(combine, "merge_model", merged)
    monkeypatch.setattr(combine, "_make_room", _room)
    answer = await client.post(f"/v1/adapters/{name}/merge")
    assert answer.status_code == 200, answer.text
    output = Path(answer.json()["output"]).name
    assert output.startswith(f"default+small-{'n' * 34}-{digest(7)[7:19]}-")


async def test_what_a_failed_merge_wrote_is_deleted_apart_from_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the size of a model, and streams would wait for that."""
    threads = list[threading.Thread]()

    async def fail(job: Merge, tell: object) -> None:
        (job.out / "model.safetensors").write_bytes(b"x")
        raise EngineFailed("the disk is full")

    def rmtree(folder: Path, ignore_errors: bool) -> None:
        threads.append(threading.current_thread())
        stock(folder, ignore_errors)

    stock = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr(model, "compose", fail)
    with pytest.raises(EngineFailed):
        await model.merge_model(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", trusted=False)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    assert list(tmp_path.iterdir()) == []


def write_merged(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_bytes(b"{}" * 50)


async def test_merged_models_are_listed_and_deleted_by_their_team(gateway: FakeGateway) -> None:
    folder = gateway.settings.data_dir / "merged"
    write_merged(folder, "a+one", "b+two", "three", ".a+half")
    merged, ours = gateway.gateway.services.merged, Caller(team="a", scopes=frozenset((Scope.ADAPTERS,)))
    admin = Caller(scopes=frozenset((Scope.ADMIN,)))
    [one] = await merged.all(ours)
    assert (one.name, one.team, one.output, one.bytes, one.models) == ("a+one", "a", str(folder / "a+one"), 100, [])
    assert [(view.name, view.team) for view in await merged.all(admin)] == [
        ("a+one", "a"), ("b+two", "b"), ("three", None)
    ]  # fmt: skip
    for name in ("b+two", "three", "..", ".a+half", "none"):
        with pytest.raises(NotFound, match="no merged model"):
            await merged.delete(name, ours)
    assert (await merged.delete("a+one", ours)).freed_bytes == 100
    await merged.delete("three", admin)
    assert sorted(path.name for path in folder.iterdir()) == [".a+half", "b+two"]


async def test_what_is_no_merged_model_or_was_just_deleted_fails_no_list(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gateway.settings.data_dir / "merged"
    write_merged(folder, "a+one", "a+two")
    (folder / "a+note.txt").write_bytes(b"x")
    stock = model.size_of

    def delete_first(out: Path) -> int:
        if out.name == "a+one":
            shutil.rmtree(out, ignore_errors=True)
        return stock(out)

    monkeypatch.setattr("runtime.gateway.launch.merged.size_of", delete_first)
    models = gateway.gateway.services.merged
    assert [one.name for one in await models.all(Caller(team="a"))] == ["a+two"]
    write_merged(folder, "a+one")
    assert merged_sizes(folder)("a") == {"a+one": 0, "a+two": 100}


async def test_a_merged_model_that_is_served_is_not_deleted(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    folder = gateway.settings.data_dir / "merged"
    write_merged(folder, "default+one")
    gateway.residency.get("small").path = folder / "default+one"
    [one] = (await client.get("/v1/merged")).json()["data"]
    assert (one["name"], one["models"]) == ("default+one", ["small"])
    refused = await client.delete("/v1/merged/default+one")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "merged_in_use")
    gateway.residency.get("small").path = None
    deleted = await client.delete("/v1/merged/default+one")
    assert (deleted.status_code, deleted.json()["freed_bytes"]) == (200, 100), deleted.text
    gone = await client.delete("/v1/merged/default+one")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "merged_not_found")


async def test_a_merge_that_is_cancelled_while_it_is_published_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half of it would count as the merged model from then on."""
    syncs, may_go = threading.Event(), threading.Event()

    async def write(job: Merge, tell: object) -> None:
        (job.out / "model.safetensors").write_bytes(b"x")

    def sync(folder: Path) -> None:
        syncs.set()
        may_go.wait()

    monkeypatch.setattr(model, "compose", write)
    monkeypatch.setattr(model, "sync_all", sync)
    out = tmp_path / "out"
    merging = asyncio.create_task(model.merge_model(tmp_path / "base", tmp_path / "adapter", out, trusted=False))
    assert await asyncio.to_thread(syncs.wait, PATIENCE)
    merging.cancel()
    await asyncio.wait({merging}, timeout=0.1)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await merging
    await asyncio.to_thread(lambda: None)
    assert [file.name for file in out.iterdir()] == ["model.safetensors"]
    assert list(tmp_path.iterdir()) == [out]
    assert out.stat().st_mode & 0o777 == 0o755, "other users may read it, as any other model"
