"""How large a body may be, how much it may hold, and how slowly it may come, for every path, also those that never look
at it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import QueueFull, RequestTimedOut, TooLarge
from registry.values import Values
from runtime.http.bodies import too_large
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of
from runtime.http.guard.origin import FORMS


@dataclass(frozen=True, slots=True)
class BodyPace:
    """`seconds` for the whole body, and one more for each `rate` bytes that have come."""

    seconds: float
    rate: int

    def left(self, waited: float, size: int) -> float:
        return self.seconds + size / self.rate - waited


RETRY_AFTER = 5.0


@dataclass(slots=True)
class Room:
    """Bytes of bodies in memory: a bound for each is not enough, thousands may come at once or wait for their turn."""

    most: int
    held: int = 0

    def add(self, count: int) -> None:
        """Raises QueueFull."""
        if self.held + count > self.most:
            raise QueueFull(
                f"Bodies of requests that are under way hold {self.held} bytes, and {self.most} is what all may hold "
                "together (--max-bodies): try again.",
                code="bodies_full",
                retry_after=RETRY_AFTER,
            )
        self.held += count


class Bodies:
    """Raises RequestTimedOut, TooLarge or QueueFull from `receive`, which endpoints write in their dialect's words.

    FastAPI, where it reads a body itself, turns what is raised there into an error of its own: then ours is sent
    in its place. Only the time that we wait for the client counts, not the time that the endpoint takes.

    Args:
        most: bytes of a body that is no form, by its path; forms, on paths that take them, have bounds of their own,
            by what they bring, and lie on disk.
        room: for all of those together, until they are answered.
        values: that such a body may hold.
    """

    def __init__(self, app: ASGIApp, pace: BodyPace, most: Callable[[str], int], room: Room, values: int) -> None:
        self._app, self._pace, self._most, self._room, self._values = app, pace, most, room, values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        room = None if _is_form(scope) else self._room
        body = _Body(receive, send, self._pace, self._most(scope["path"]), room, Values(self._values), _declared(scope))
        try:
            await self._app(scope, body.receive, body.send)
        finally:
            body.leave()
        if body.refusal is not None and not body.answered:
            await error_response(body.refusal, dialect_of(scope["path"]))(scope, receive, send)


def _declared(scope: Scope) -> int:
    """Bytes that are to come, as the client says; the parser has refused what is no number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def _is_form(scope: Scope) -> bool:
    if scope["path"] not in FORMS:
        return False
    return any(name == b"content-type" and value.lower().startswith(b"multipart/") for name, value in scope["headers"])


class _Body:
    """One request's."""

    def __init__(
        self, receive: Receive, send: Send, pace: BodyPace, most: int, room: Room | None, values: Values, declared: int
    ) -> None:
        """room: None for a form. declared: bytes that are to come."""
        self._values, self._declared = values, declared
        self._receive, self._send, self._pace, self._most, self._room = receive, send, pace, most, room
        self._size, self._held, self._waited, self._ended = 0, 0, 0.0, False
        self.refusal: RequestTimedOut | TooLarge | QueueFull | None = None
        self.answered = False

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()
        # an endpoint with a bound of its own has refused it by now
        if self._room is not None and max(self._size, self._declared) > self._most:
            self.refusal = too_large(self._most)
            raise self.refusal
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._pace.left(self._waited, self._size)):
                message = await self._receive()
        except TimeoutError:
            self.refusal = RequestTimedOut(
                f"The body came too slowly. Send it within {self._pace.seconds:g} s, "
                f"or at {self._pace.rate} bytes a second."
            )
            raise self.refusal from None
        self._waited += loop.time() - began
        size = len(message.get("body", b""))
        self._size += size
        self._ended = not message.get("more_body", False)
        if self._room is not None:
            try:
                self._values.add(message.get("body", b""))
                self._room.add(size)
            except (TooLarge, QueueFull) as refusal:
                self.refusal = refusal
                raise
            self._held += size
        return message

    def leave(self) -> None:
        if self._room is not None:
            self._room.held -= self._held

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.refusal is not None and message["status"] != self.refusal.status:
                return
            self.answered = True
        if self.answered:
            await self._send(message)
