"""One running provider for the tests of each file."""

from collections.abc import Iterator

import pytest

from tests.fakes.sign_in import SECRET, RunningProvider, running_provider


@pytest.fixture(scope="module")
def _running() -> Iterator[RunningProvider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def provider(_running: RunningProvider, monkeypatch: pytest.MonkeyPatch) -> RunningProvider:
    """Return the provider without changes or requests of earlier tests."""
    monkeypatch.setenv("TEST_OIDC_SECRET", SECRET)
    _running.change, _running.resign = None, None
    _running.discovery.clear()
    _running.requests.clear()
    return _running
