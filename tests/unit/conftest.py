"""A PostgreSQL for the tests of all rooms that keep something in a database."""

from collections.abc import Iterator

import pytest

from tests.postgres import postgres, programs


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb")
    with postgres() as url:
        yield url
