"""The server around the console, as far as the console may use it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from console.live import LiveView
from console.state import Console
from registry.recipes.definition import Task, Tier
from tenants.caller import SCOPES, Caller, Person, Scope
from tenants.key_settings import KeySettings
from tenants.ledger.view import UsageReport


class Model(Protocol):
    """A model, as `GET /v1/models/{id}` tells of it."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> Task: ...
    @property
    def state(self) -> str: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def adapters(self) -> Sequence[str]: ...
    @property
    def bytes(self) -> int: ...


class ConsoleAdapter(Protocol):
    """An adapter, as `GET /v1/adapters/{name}` tells of it."""

    @property
    def name(self) -> str: ...
    @property
    def base(self) -> str: ...


class ConsoleRouter(Protocol):
    """A router, as `GET /v1/routers/{name}` tells of it."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def definition(self) -> Mapping[str, object]: ...


class ConsoleProvider(Protocol):
    """A provider, as `GET /v1/providers` tells of it."""

    @property
    def id(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def key_is_set(self) -> bool: ...


class ConsoleBatch(Protocol):
    """A batch and what it waits for."""

    @property
    def id(self) -> str: ...
    @property
    def team(self) -> str: ...
    @property
    def waits(self) -> str: ...


class ConsolePlan(Protocol):
    """The effects of a load, as in `POST /v1/models/{id}/plan`."""

    @property
    def verdict(self) -> str: ...
    @property
    def why(self) -> str: ...


class OwnServer(Protocol):
    """This server in its fleet."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...


class FleetDevice(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...


class FleetReplica(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class FleetMember(Protocol):
    """A server of the fleet, as `GET /v1/fleet` tells of it."""

    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> Sequence[FleetDevice]: ...
    @property
    def models(self) -> Sequence[FleetReplica]: ...


class ConsoleFleet(Protocol):
    """The fleet, as `GET /v1/fleet` tells of it."""

    @property
    def members(self) -> Sequence[FleetMember]: ...


class Host(Protocol):
    """A server, as its console sees it."""

    @property
    def phase(self) -> str: ...
    @property
    def console(self) -> Console: ...
    @property
    def public_url(self) -> str | None:
        """This server's address for clients, if its operator set one."""
        ...

    @property
    def own_server(self) -> OwnServer | None:
        """This server's name in its fleet; None: it belongs to none."""
        ...

    def fleet(self) -> ConsoleFleet | None:
        """The fleet's view; None: the server belongs to none."""
        ...

    @property
    def is_passed(self) -> bool:
        """Whether the viewer is at another server of the fleet."""
        ...

    async def page_of(self, node: str, path: str) -> Response:
        """Fetch a page of another server for the same caller.

        Raises NotFound; sending the answer may raise NodeFailed.
        """
        ...

    @property
    def usage(self) -> UsageReport: ...
    @property
    def key_settings(self) -> KeySettings:
        """The database of teams and keys."""
        ...

    @property
    def caller(self) -> Caller:
        """The caller of this request, without scopes where it lacks a needed key."""
        ...

    def caller_now(self) -> Caller:
        """The same, asked again: a key or a session may have ended since."""
        ...

    def identify(self, keys: Sequence[str]) -> Caller:
        """Raises Unauthorized."""
        ...

    def member(self, person: Person) -> Caller:
        """Raises Unauthorized for a person whose team is gone."""
        ...

    def now(self) -> LiveView: ...
    def models(self) -> Sequence[Model]:
        """The models that the caller may use."""
        ...

    def plan(self, model: str) -> ConsolePlan:
        """Raises NotFound."""
        ...

    async def recipe(self, model: str) -> str:
        """The recipe in the form of a recipe file. Raises NotFound."""
        ...

    def adapters(self) -> Sequence[ConsoleAdapter]: ...
    def routers(self) -> Sequence[ConsoleRouter]: ...
    def providers(self) -> Sequence[ConsoleProvider]: ...
    async def batches(self, team: str | None, limit: int) -> Sequence[ConsoleBatch]:
        """The newest ones of a team, or of all. Raises Unavailable, QueueFull."""
        ...

    async def batch_deliveries(self, batch: ConsoleBatch) -> Sequence[object]:
        """Deliveries of the batch's end. Raises Unavailable, QueueFull."""
        ...

    async def batch_failures(self, batch: ConsoleBatch) -> Mapping[str, int]:
        """The batch's failed lines by code. Raises Unavailable, QueueFull."""
        ...

    def may_route(self, router: str) -> bool:
        """Whether the caller may use one of the router's targets, as `GET /v1/models` decides it too."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit of a page by a browser."""

    request: Request
    host: Host

    @property
    def caller(self) -> Caller:
        return self.host.caller

    def may(self, *scopes: Scope) -> bool:
        """Whether the caller has one of these."""
        return not self.caller.scopes.isdisjoint(scopes)

    @property
    def is_free(self) -> bool:
        """Whether there is nothing that a key would open."""
        return self.caller.scopes == SCOPES

    @property
    def team(self) -> str | None:
        """The team whose requests the caller may see; None: all teams."""
        return None if self.may(Scope.ADMIN) else self.caller.team


def _everywhere(_: Host) -> bool:
    return True


Context = Mapping[str, object]
Action = Callable[[Visit, Mapping[str, object]], Awaitable[Context]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: PAGE in `console/pages/SLUG/__init__.py`, with `page.html` beside it.

    Attributes:
        order: among the others, in the navigation.
        scopes: of which one is needed.
        context: what its template is filled with.
        parts: names of templates beside it that show a part of it, for `?part=NAME`.
        actions: what is posted to `SLUG/ACTION` as JSON; each answers with JSON, and its errors are the API's.
        is_available: whether a server has this page at all.
    """

    title: str
    order: int
    scopes: frozenset[Scope]
    context: Callable[[Visit], Awaitable[Context]]
    parts: frozenset[str] = frozenset()
    actions: Mapping[str, Action] = field(default_factory=dict)
    is_available: Callable[[Host], bool] = _everywhere
