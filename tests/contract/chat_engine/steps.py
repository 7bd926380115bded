"""The steps of EngineCore, and which requests got a token in each: a delay counted in steps, not in seconds."""

from types import TracebackType
from typing import Any, Self

from tests.contract.chat_engine.bench import Bench


class Steps:
    """A context manager; inside it every step that gave anybody a token is noted."""

    def __init__(self, bench: Bench) -> None:
        self._core: Any = bench.engine._engine.engine_core  # type: ignore[union-attr]
        self.all: list[frozenset[str]] = []
        """Per step, the requests that got a token."""

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
        """The longest row of steps, between a request's first token and its last, that gave it none."""
        got = [any(request.startswith(name) for request in step) for step in self.all]
        assert any(got), f"{name} never got a token"
        first, last = got.index(True), len(got) - got[::-1].index(True)
        longest = row = 0
        for its in got[first:last]:
            row = 0 if its else row + 1
            longest = max(longest, row)
        return longest

    def shared(self, name: str) -> int:
        """In how many steps a request got a token together with another."""
        return sum(len(step) > 1 and any(request.startswith(name) for request in step) for step in self.all)
