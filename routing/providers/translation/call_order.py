"""Orders the pieces of tool calls as clients of Messages and Responses expect."""

from collections.abc import Iterator
from typing import Any

import msgspec

from registry.base.json import NOT_JSON
from routing.providers.pass_through import BadAnswer
from routing.providers.translation.completions import ChatToolCall, ToolFunction


class OrderedCalls:
    """Orders the tool calls of one stream. The first piece of each call has its name.

    | a piece belongs to   | it is                                                       |
    |----------------------|-------------------------------------------------------------|
    | the current call     | returned at once                                            |
    | another call         | held until the current call's arguments are complete and it |
    |                      | has its name, or until the end                              |
    | an ended call        | an error, unless it is blank                                |
    """

    def __init__(self) -> None:
        self._current: int | None = None
        self._arguments = ""
        """Arguments of the current call."""
        self._waiting: dict[int, ChatToolCall] = {}
        self._over: set[int] = set()

    @property
    def begun(self) -> bool:
        return bool(self._waiting or self._over or self._current is not None)

    def take(self, call: ChatToolCall) -> Iterator[ChatToolCall]:
        """Yield the pieces that are in order now. Raises BadAnswer."""
        arguments_text = call.function.arguments_text
        if call.index == self._current:
            self._arguments += arguments_text
            yield call
        elif call.index in self._over:
            if arguments_text.strip():
                raise BadAnswer("answered with interleaved tool calls")
        else:
            waiting = self._waiting.setdefault(call.index, ChatToolCall(call.index))
            name = waiting.function.name or call.function.name
            waiting.id = waiting.id or call.id
            waiting.function = ToolFunction(name, waiting.function.arguments_text + arguments_text)
        while self._waiting and (self._current is None or _is_whole(self._arguments)):
            first = next(iter(self._waiting.values()))
            if not first.function.name:
                return
            yield self._begun(first)

    def words(self) -> None:
        """End the current call, because other content follows."""
        if self._current is not None:
            self._over.add(self._current)
            self._current = None

    def rest(self) -> Iterator[ChatToolCall]:
        """Yield the pieces still held at the end of the answer."""
        while self._waiting:
            yield self._begun(next(iter(self._waiting.values())))

    def _begun(self, call: ChatToolCall) -> ChatToolCall:
        self.words()
        del self._waiting[call.index]
        self._current, self._arguments = call.index, call.function.arguments_text
        return call


def _is_whole(arguments: str) -> bool:
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except NOT_JSON:
        return False
    return True
