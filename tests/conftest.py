"""Three servers for all tests that only send requests. Tests that break things start their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from registry.base.importing import fast_imports
from tests.eventually import PATIENCE
from tests.workers import GroupsOfFiles, group_of, in_order, is_last_of_group, mark_groups, without_group

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.system.serving import Server

# Without byte code, each server and command that a test starts would compile the product again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# vLLM's server imports this module, which raises the level of the root logger and of pytest's handlers to ERROR. Import
# it now and restore the level, or tests that read the product's log would find nothing.
import_module("model_hosting_container_standards.logging_config")
logging.getLogger().setLevel(logging.WARNING)

# All runs test the same examples, so rare failures only come with `--hypothesis-profile=explore`.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeat")

started: dict[str, list[Server]] = {}
"""Running servers of the session, by the group of files that uses them."""
REAL_SECONDS = 1500
"""Default time limit of a test with a real engine, so long because a busy machine must not fail it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and exclude the thousands of modules and tests from it afterwards."""
    with fast_imports():
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        mark_groups([item for item in items if isinstance(item, pytest.Function)])
        items[:] = in_order(items)
    for item in items:
        if item.get_closest_marker("real") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(REAL_SECONDS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupsOfFiles | None:
    return GroupsOfFiles(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Close the servers of a group after its last test, because idle ones slow down the tests that follow."""
    yield
    if is_last_of_group(item, nextitem):
        for server in started.pop(group_of(item), []):
            server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the log of each server that a failed test used, which may be the only trace of a rare fault."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            log = getattr(value, "log", None)
            if isinstance(log, Path) and log.is_file():
                report.sections.append((f"log of {name}", value.tail()))
    return report


@pytest.hookimpl(tryfirst=True)  # before other plugins see the report
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = without_group(report.nodeid)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the starter pack."""
    from tests.system.serving import STARTER, Server

    data: Path = tmp_path_factory.mktemp("data")
    server = Server(data, [STARTER], "--log-level", "debug", "--callback-networks", "127.0.0.0/8", prewarm=True)
    try:
        server.wait_ready().wait_state("starter-chat", "ready")  # which other loads wait for
        started.setdefault("server", []).append(server)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    from openai import OpenAI

    from tests.system.serving import PATIENT

    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="none", timeout=PATIENCE, max_retries=0, default_headers=PATIENT) as client:
        yield client


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that reasons and calls tools, which the starter model does not."""
    from tests.system.surfaces.thinking import serve_thinker

    with serve_thinker(tmp_path_factory.mktemp("thinker")).wait_ready() as server:
        started.setdefault("server", []).append(server)
        yield server


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that only accepts requests with keys, for tests that create their own teams."""
    from tests.system.serving import STARTER, Server

    data = tmp_path_factory.mktemp("locked") / "a" / "data"
    with Server(data, [STARTER / "starter-chat.yaml"], "--slots", "1") as server:
        server.wait_ready().wait_state("starter-chat", "ready")  # slow loads take longer than clients wait
        server.command("keys", "create", "--scopes", "infer")
        started.setdefault("locked", []).append(server)
        yield server.wait_closed()
