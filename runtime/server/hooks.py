"""Our hooks into LitServe: an API without inference, and a spec with all endpoints.

Workers unpickle the API, so nothing is imported here that a worker does not need.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import litserve as ls
from litserve.specs.base import LitSpec

from runtime.config import logs

API_PATH = "/v1/chat/completions"


class RuntimeAPI(ls.LitAPI):  # type: ignore[misc]
    """The API that LitServe's workers run. They start empty and get models by Load frames."""

    def setup(self, device: Any) -> None:
        logs.configure(os.environ.get("ROUNDHOUSE_LOG_LEVEL", "info"))

    def predict(self, x: Any, **_: Any) -> Any:
        raise NotImplementedError("requests travel over the slots' own sockets")


class RuntimeSpec(LitSpec):  # type: ignore[misc]
    """Has all endpoints; workers get a copy without them."""

    def __init__(self, routes: Sequence[tuple[str, Callable[..., Any], list[str]]]) -> None:
        super().__init__()
        self.api_path = API_PATH
        for path, endpoint, methods in routes:
            self.add_endpoint(path, endpoint, methods)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_endpoints": [], "data_streamer": None}

    @property
    def stream(self) -> bool:
        return True  # also disables LitServe's gzip middleware, which would delay streams

    def pre_setup(self, lit_api: ls.LitAPI) -> None:
        """Do nothing, because the endpoints are already added."""

    def decode_request(self, request: Any, context_kwargs: Any = None) -> Any:
        return request

    def encode_response(self, output: Any, context_kwargs: Any = None) -> Any:
        return output
