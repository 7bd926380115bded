"""EngineCore's steps, and which requests got a token in each, to count delays in steps instead of seconds."""

from types import TracebackType
from typing import Any, Self

from tests.contract.chat_engine.bench import Bench


class Steps:
    """A context manager that notes every step in which any request got a token."""

    def __init__(self, bench: Bench) -> None:
        self._core: Any = bench.engine._engine.engine_core  # type: ignore[union-attr]
        self.all: list[frozenset[str]] = []
        """The requests that got a token, by step."""

    def __enter__(self) -> Self:
        requested = self._core.get_output_async

        async def noted() -> Any:
            reported = await requested()
            if got := frozenset(output.request_id for output in reported.outputs if output.new_token_ids):
                self.all.append(got)
            return reported

        self._core.get_output_async = noted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._core.get_output_async

    def missed(self, name: str) -> int:
        """Return the longest run of steps without a token for a request, between its first token and its last."""
        got = [any(request.startswith(name) for request in step) for step in self.all]
        assert any(got), f"{name} never got a token"
        first, last = got.index(True), len(got) - got[::-1].index(True)
        longest = row = 0
        for its in got[first:last]:
            row = 0 if its else row + 1
            longest = max(longest, row)
        return longest

    def shared(self, name: str) -> int:
        """Return in how many steps a request got a token together with another."""
        return sum(len(step) > 1 and any(request.startswith(name) for request in step) for step in self.all)
