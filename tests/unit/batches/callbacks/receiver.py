"""A server that receives callbacks and gives the answers of a list in turn."""

from dataclasses import dataclass, field
from types import TracebackType

from aiohttp import web

from batches.callbacks.webhooks import new_seed, secret_of
from tests.unit.batches.conftest import KEY


def new_secret() -> str:
    return secret_of(new_seed(), KEY)


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


class Receiver:
    """A receiver. answers: statuses in turn, of which the last is repeated."""

    def __init__(self, *answers: int, headers: dict[str, str] | None = None) -> None:
        self.answers, self.headers = list(answers or (200,)), headers or {}
        self.received: list[Received] = []
        self.port = 0
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app)

    async def _take(self, request: web.Request) -> web.Response:
        self.received.append(Received(request.path, dict(request.headers), await request.read()))
        status = self.answers[min(len(self.received), len(self.answers)) - 1]
        return web.Response(status=status, headers=self.headers, text="x" * 100_000)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def __aenter__(self) -> "Receiver":
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
