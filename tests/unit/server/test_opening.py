"""Gateways opened with given settings and devices."""

import asyncio
import errno
import gc
import json
import signal
from contextlib import closing
from pathlib import Path

import pytest

from registry.base.heap import CollectionLog
from registry.errors import Unavailable
from registry.names import DEFAULT_TEAM
from registry.recipes.loading import Documents, load_recipes
from runtime.config import logs
from runtime.config.device import NO_DEVICE, Device
from runtime.config.settings import Settings
from runtime.gateway.opening import _Rooms, open_gateway
from runtime.residency.policy import NO_LIMIT
from runtime.server import api_process
from runtime.server.api_process import ApiProcess
from runtime.server.shutdown import Shutdown
from tenants.responses.table import ResponseTable
from tenants.storage.opening import open_tables
from tests.system.serving import STARTER


@pytest.mark.parametrize(
    ("device", "host_budget"),
    [(Device("cpu", "cpu", "cpu", 100, 100), NO_LIMIT), (Device("cuda", "cuda:0", "GPU", 100, 100, 100, 0), 0)],
    ids=["on a CPU", "beside a GPU"],
)
async def test_a_host_budget_of_0_is_no_limit_only_on_a_cpu(tmp_path: Path, device: Device, host_budget: int) -> None:
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False)
    async with open_gateway(settings, Documents(), device) as gateway:
        assert gateway.services.models._residency.table.host_budget == host_budget


async def test_an_unreadable_model_does_not_stop_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "/models/m/tokenizer.json")

    monkeypatch.setattr("runtime.gateway.files.sources.revision", unreadable)
    recipe = load_recipes(STARTER / "starter-embed.yaml")[0]
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False)
    async with open_gateway(settings, Documents((recipe,)), Device("cpu", "cpu", "cpu", 100, 100)) as gateway:
        broken = gateway.services.models._residency.entries[recipe.id].broken
    assert broken is not None
    assert "/models/m/tokenizer.json cannot be read or created: Permission denied." in broken.message


async def test_half_finished_files_of_a_killed_server_are_removed_at_the_start(tmp_path: Path) -> None:
    halves = [tmp_path / "converted" / "abc-2.half", tmp_path / "merged" / ".small-one-1234"]
    for half in halves:
        half.mkdir(parents=True)
        (half / "model.bin").write_bytes(b"x")
    settings = Settings(recipes=(), data_dir=tmp_path, run_dir=tmp_path / "run", prewarm=False, watch=False)
    async with open_gateway(settings, Documents(), Device("cpu", "cpu", "cpu", 100, 100)):
        assert not any(half.exists() for half in halves)


async def test_responses_without_a_key_are_stored_for_the_hours_of_the_setting(tmp_path: Path) -> None:
    settings = Settings(
        recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False, store_responses=24
    )
    async with open_gateway(settings, Documents(), Device("cpu", "cpu", "cpu", 100, 100)) as gateway:
        responses = gateway.services.responses
        assert (responses.hours(DEFAULT_TEAM), responses.hours("search")) == (24, 0)
        assert await responses.put("resp_1", DEFAULT_TEAM, b"[]", b"{}")
        assert (await responses.get(DEFAULT_TEAM, "resp_1")).answer == b"{}"


async def test_responses_that_ran_when_a_backup_was_made_fail_after_its_restore(tmp_path: Path) -> None:
    """The restored server has a new id, and no other one would end them."""
    data = tmp_path / "data"
    with closing(open_tables(data)) as database:
        ResponseTable(database, "before", 1 << 20).put("resp_1", DEFAULT_TEAM, 1, b"[]", b"{}", running=True)
    settings = Settings(recipes=(), data_dir=data, run_dir=tmp_path / "run", prewarm=False, watch=False)
    async with open_gateway(settings, Documents(), NO_DEVICE) as gateway:
        row = await gateway.services.responses.get(DEFAULT_TEAM, "resp_1")
    assert (row.running, json.loads(row.answer)["status"]) == (False, "failed")


def test_periods_of_budgets_are_by_the_ledgers_clock(tmp_path: Path) -> None:
    """In a fleet that is the database's."""
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run")
    rooms = _Rooms(settings, Documents(), NO_DEVICE)
    rooms.ledger.clock = lambda: 7.0
    assert rooms.limiter._wall() == 7.0


async def test_a_server_of_a_fleet_reads_its_limits_by_the_databases_clock(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        recipes=(), data_dir=tmp_path, run_dir=tmp_path / "run", fleet="clocks", front=True, database=database_url,
        pepper="p" * 32,
    )  # fmt: skip
    rooms, times = _Rooms(settings, Documents(), NO_DEVICE), list[float]()
    rooms.ledger.clock = lambda: 7.0  # this machine's, which is wrong

    async def read(_: object) -> None:
        times.append(rooms.ledger.clock())

    monkeypatch.setattr(rooms.limits, "read", read)
    tables = await rooms._fleet_tables()
    assert tables is not None
    assert [now > 10**9 for now in times] == [True]
    await rooms.ledger.close()
    await rooms.keys.close()
    tables.names.database.close()
    tables.members.close()


async def test_a_start_that_fails_at_the_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)  # of the test run's own

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "store"))

    monkeypatch.setattr("adapters.store.Store.start", refused)
    settings = Settings(recipes=(), data_dir=tmp_path, run_dir=tmp_path / "run", prewarm=False, watch=False)
    process = ApiProcess(settings, Documents(), Device("cpu", "cpu", "cpu", 100, 100))
    with pytest.raises(Unavailable, match=r"store cannot be read or created: Permission denied\. .* has to own it"):
        await process.start()


async def test_a_gateway_that_is_open_freezes_its_heap_and_logs_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)  # of the test run's own
    monkeypatch.setattr(Shutdown, "listen", lambda _: None)
    monkeypatch.setattr(gc, "callbacks", [])
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False)
    process = ApiProcess(settings, Documents(), Device("cpu", "cpu", "cpu", 100, 100))
    frozen: list[object] = []
    monkeypatch.setattr(api_process, "freeze_heap", lambda: frozen.append(process.gateway()))
    await process.start()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    await process.stop()
    assert frozen == [process.gateway()], "the heap is frozen after the gateway was opened"
    assert [type(callback) for callback in gc.callbacks] == [CollectionLog]
