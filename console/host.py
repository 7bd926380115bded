"""The interface of the server to its console.

A value that is only passed to a template is typed as `object`: the template knows its fields.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from console.live import LiveView
from console.state import Console
from registry.recipes.definition import Task
from tenants.caller import SCOPES, Caller, Person, Scope
from tenants.ledger.view import UsageReport
from tenants.watch import Tables

T = TypeVar("T")


class Model(Protocol):
    """The fields of a model in `GET /v1/models/{id}`."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> Task: ...
    @property
    def adapters(self) -> Sequence[str]: ...


class ConsoleAdapter(Protocol):
    """The fields of an adapter in `GET /v1/adapters/{name}` by which one is found."""

    @property
    def name(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...


class ConsoleRouter(Protocol):
    """The fields of a router in `GET /v1/routers/{name}`."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def definition(self) -> Mapping[str, object]: ...


class ConsoleBatch(Protocol):
    """A batch, and why it waits."""

    @property
    def id(self) -> str: ...
    @property
    def team(self) -> str: ...
    @property
    def waits(self) -> str: ...


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
    """A server in `GET /v1/fleet`."""

    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> Sequence[FleetDevice]: ...
    @property
    def models(self) -> Sequence[FleetReplica]: ...


class ConsoleFleet(Protocol):
    """The fleet in `GET /v1/fleet`."""

    @property
    def members(self) -> Sequence[FleetMember]: ...


class Host(Protocol):
    """The server, as the console sees it."""

    @property
    def phase(self) -> str: ...
    @property
    def console(self) -> Console: ...
    @property
    def public_url(self) -> str | None:
        """This server's address for clients, if its operator set one."""
        ...

    @property
    def own_server(self) -> object | None:
        """This server in its fleet. None without a fleet."""
        ...

    def fleet(self) -> ConsoleFleet | None:
        """Return the state of the fleet. None without a fleet."""
        ...

    @property
    def is_passed(self) -> bool:
        """Whether the viewer is connected to another server of the fleet."""
        ...

    async def page_of(self, node: str, path: str) -> Response:
        """Fetch a page of another server for the same caller.

        Raises NotFound; sending the answer may raise NodeFailed.
        """
        ...

    @property
    def usage(self) -> UsageReport: ...
    @property
    def has_tables(self) -> bool:
        """Whether the database of teams and keys exists."""
        ...

    async def tables(self, work: Callable[[Tables], T]) -> T:
        """Run `work` on the tables of teams, creating them if needed. Raises its errors, Unavailable, QueueFull."""
        ...

    @property
    def caller(self) -> Caller:
        """The caller of this request. Has no scopes if it lacks a required key."""
        ...

    def caller_now(self) -> Caller:
        """Return the caller as identified now: its key or session may have ended since."""
        ...

    def identify(self, keys: Sequence[str]) -> Caller:
        """Return the caller with these keys. Raises Unauthorized."""
        ...

    def member(self, person: Person) -> Caller:
        """Return the caller for a person. Raises Unauthorized if the person's team does not exist."""
        ...

    def now(self) -> LiveView: ...
    def models(self) -> Sequence[Model]:
        """Return the models that the caller may use."""
        ...

    def plan(self, model: str) -> object:
        """Return the plan of a load, as in `POST /v1/models/{id}/plan`. Raises NotFound."""
        ...

    async def recipe(self, model: str) -> str:
        """Return the recipe as the text of a recipe file. Raises NotFound."""
        ...

    async def adapters(self) -> Sequence[ConsoleAdapter]:
        """Return the adapters as in `GET /v1/adapters`."""
        ...

    def routers(self) -> Sequence[ConsoleRouter]: ...
    def providers(self) -> Sequence[object]:
        """Return the providers as in `GET /v1/providers`."""
        ...

    async def batches(self, team: str | None, limit: int) -> Sequence[ConsoleBatch]:
        """Return the newest batches of a team, or of all. Raises Unavailable, QueueFull."""
        ...

    async def batch_deliveries(self, batch: ConsoleBatch) -> Sequence[object]:
        """Return the deliveries of the batch's event. Raises Unavailable, QueueFull."""
        ...

    async def batch_failures(self, batch: ConsoleBatch) -> Mapping[str, int]:
        """Return the number of failed lines by code. Raises Unavailable, QueueFull."""
        ...

    def may_route(self, router: str) -> bool:
        """Whether the caller may use any of the router's targets, decided as in `GET /v1/models`."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page."""

    request: Request
    host: Host

    @property
    def caller(self) -> Caller:
        return self.host.caller

    def may(self, *scopes: Scope) -> bool:
        """Whether the caller has one of these scopes."""
        return not self.caller.scopes.isdisjoint(scopes)

    @property
    def is_free(self) -> bool:
        """Whether a key would give no further access."""
        return self.caller.scopes == SCOPES

    @property
    def team(self) -> str | None:
        """The team whose requests the caller may see. None for all teams."""
        return None if self.may(Scope.ADMIN) else self.caller.team


def _everywhere(_: Host) -> bool:
    return True


Context = Mapping[str, object]
Action = Callable[[Visit, Mapping[str, object]], Awaitable[Context]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `PAGE` in `console/pages/SLUG/__init__.py`, next to its `page.html`.

    Attributes:
        order: position in the navigation.
        scopes: the caller needs one of these.
        context: returns the values for the template.
        parts: names of templates in the same folder that render a part of the page, for `?part=NAME`.
        actions: handlers of JSON posted to `SLUG/ACTION`. They answer with JSON, and errors are those of the API.
        is_available: whether a server has this page at all.
    """

    title: str
    order: int
    scopes: frozenset[Scope]
    context: Callable[[Visit], Awaitable[Context]]
    parts: frozenset[str] = frozenset()
    actions: Mapping[str, Action] = field(default_factory=dict)
    is_available: Callable[[Host], bool] = _everywhere
