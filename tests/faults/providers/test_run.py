"""The short form of `tests.faults.providers.run`, with more failures, so that the breaker opens within seconds."""

import pytest

from tests.faults.providers.run import EXPECTED, run


@pytest.mark.long
async def test_a_router_with_a_fallback_answers_while_its_provider_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "x")
    found = await run(seconds=6.0, clients=8, seed=0, share=0.7, until_open=True)
    assert found["answered"] >= EXPECTED, found["failed"]
    assert found["not_in_the_table"] == []
    assert found["by"].keys() == {"first", "second"}
    assert found["breaker"]["closed to open"] >= 1
