"""Sets the environment variable that has the key of the fake providers."""

import pytest

from tests.unit.providers.rig import KEY


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)
