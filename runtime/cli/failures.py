"""Failures that end a command, and their exit codes.

| code | meaning                                                              |
|------|----------------------------------------------------------------------|
| 0    | done                                                                 |
| 1    | refused: 4xx, a recipe with faults, a missing file                   |
| 2    | usage: an option or argument is wrong                                |
| 3    | no server answers at the address                                     |
| 4    | the server failed: 5xx, not ready, or ended by itself                |
| 130  | interrupted by Ctrl-C                                                |
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

EXIT_CODES = """Exit codes: 0 done; 1 refused (4xx, faulty recipe, missing file); 2 wrong usage;
3 no server at the address; 4 the server failed (5xx); 130 interrupted."""


class Failure(Exception):
    """A failure of a command, with a line for people, an `exit_code` for scripts, and `faults` as further lines."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        faults: Sequence[str] = (),
        status: int | None = None,
        code: str | None = None,
        document: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.faults = tuple(faults)
        self.status = status
        """HTTP status, if a server answered."""
        self.code = code
        """The server's error code."""
        self.document = document
        """The output of --json, if an answer explains the failure; otherwise the error itself is printed."""


class RefusedError(Failure):
    exit_code = 1


class UsageError(Failure):
    exit_code = 2


class ServerUnreachableError(Failure):
    exit_code = 3


class ServerError(Failure):
    exit_code = 4


@contextmanager
def refusals() -> Iterator[None]:
    """Convert the product's errors to RefusedError."""
    from registry.errors import RoundhouseError

    try:
        yield
    except RoundhouseError as error:
        raise RefusedError(error.message, faults=getattr(error, "faults", ()), code=error.code) from None


@contextmanager
def translated_faults() -> Iterator[None]:
    """Convert the product's errors to UsageError or RefusedError."""
    from registry.errors import BadRequest

    with refusals():
        try:
            yield
        except BadRequest as error:
            raise UsageError(error.message, code=error.code) from None
