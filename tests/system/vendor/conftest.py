"""The model that thinks and calls tools, for answers that the starter model does not give."""

from collections.abc import Iterator

import pytest

from tests.system.serving import Server
from tests.system.surfaces.thinking import serve_thinker


@pytest.fixture(scope="package")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve_thinker(tmp_path_factory.mktemp("thinker"))
    try:
        yield server.wait_ready()
    finally:
        server.close()
