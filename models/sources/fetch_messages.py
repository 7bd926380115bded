"""What a process that fetches or converts files tells the server, one line of JSON each."""

import msgspec


class FetchProgress(msgspec.Struct, frozen=True, tag=True):
    """So many bytes are here, of so many."""

    come: int
    whole: int | None


class FetchDone(msgspec.Struct, frozen=True, tag=True):
    path: str


class FetchFailed(msgspec.Struct, frozen=True, tag=True):
    """An error of `registry.errors`."""

    status: int
    code: str
    message: str
    retry_after: float | None = None


Answer = FetchProgress | FetchDone | FetchFailed
