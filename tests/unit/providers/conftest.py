"""Sets the environment variable with the fake providers' key."""

import pytest

from tests.unit.providers.rig import KEY


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)
