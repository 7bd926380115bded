"""Failures that end a command early, and their exit codes.

| code | meaning                                                              |
|------|----------------------------------------------------------------------|
| 0    | done                                                                 |
| 1    | refused: the server said 4xx, a recipe has faults, a file is missing |
| 2    | usage: an option or argument is wrong                                |
| 3    | no server answers at the address                                     |
| 4    | the server failed: 5xx, not ready, or it ended by itself             |
| 130  | interrupted by Ctrl-C                                                |
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

EXIT_CODES = """Exit codes: 0 done; 1 refused (4xx, faulty recipe, missing file); 2 wrong usage;
3 no server at the address; 4 the server failed (5xx); 130 interrupted."""


class Failure(Exception):
    """A failure of a command: a line for people, `exit_code` for scripts; `faults` are further lines."""

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
        """HTTP status, where a server answered."""
        self.code = code
        """The server's own word for the error."""
        self.document = document
        """The output of --json, where an answer explains the failure; else the error itself."""


class RefusedError(Failure):
    exit_code = 1


class UsageError(Failure):
    exit_code = 2


class ServerUnreachableError(Failure):
    exit_code = 3


class ServerError(Failure):
    exit_code = 4


@contextmanager
def translated_faults() -> Iterator[None]:
    """Turn the product's errors into ends of a command: wrong usage, or refused."""
    from registry.errors import BadRequest, RoundhouseError

    try:
        yield
    except BadRequest as error:
        raise UsageError(error.message, code=error.code) from None
    except RoundhouseError as error:
        raise RefusedError(error.message, code=error.code) from None
