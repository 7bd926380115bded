"""The route table: handlers state path, scope, body, answer and errors.

`runtime.http.routes` fills ROUTES by importing every handler. The guard takes the scopes from it
(`runtime.http.guard.access`), and `runtime.http.openapi` the document. A route cannot be registered without scopes,
and the server does not start with a path that is not in the table (`runtime.http.app`).
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar, Unpack

from fastapi.responses import Response

from runtime.http.admin.bodies import LoadStartedView
from runtime.http.dialect import Endpoint
from runtime.http.errors import Dialect
from runtime.http.schema import INFERENCE, MANAGEMENT, Content, Json
from runtime.http.sending import Serve, handler
from runtime.http.serving import serve
from tenants.caller import Scope

PUBLIC: frozenset[Scope] = frozenset()
"""The scope of a route that needs no key."""
LOAD_STARTED: Mapping[int, tuple[str, Content]] = {
    202: ("Only with `Prefer: respond-async`: the model's load has begun.", LoadStartedView)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method on a path."""

    method: str
    path: str  # in FastAPI's form; `{model:path}` matches slashes
    handler: Callable[..., Awaitable[Response]]
    scopes: frozenset[Scope]  # a key needs one of them
    tag: str
    id: str
    summary: str
    answer: Content
    description: str = ""
    body: Content | None = None
    examples: Json = field(default_factory=dict)  # bodies by name
    errors: tuple[int, ...] = MANAGEMENT
    dialects: tuple[Dialect, ...] = (Dialect.OPENAI,)
    parameters: tuple[str, ...] = ()  # names in schema.PARAMETERS
    others: Mapping[int, tuple[str, Content]] = field(default_factory=dict)  # successful answers besides 200
    is_inference: bool = False

    @property
    def documented_path(self) -> str:
        return self.path.replace(":path}", "}")


class RouteOptions(TypedDict, total=False):
    """Options with defaults in Route."""

    description: str
    body: Content
    examples: Json
    errors: tuple[int, ...]
    dialects: tuple[Dialect, ...]
    parameters: tuple[str, ...]
    others: Mapping[int, tuple[str, Content]]


ROUTES: list[Route] = []
"""All routes, in the order of registration."""
H = TypeVar("H", bound=Callable[..., Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """Registers the routes of one tag in the document."""

    tag: str
    dialects: tuple[Dialect, ...] = (Dialect.OPENAI,)

    def __call__(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | Collection[Scope],
        answer: Content,
        id: str | None = None,
        summary: str | None = None,
        is_inference: bool = False,
        **options: Unpack[RouteOptions],
    ) -> Callable[[H], H]:
        """Register a function. Its docstring becomes the description, its name the operation's id."""
        scopes = frozenset((scope,) if isinstance(scope, Scope) else scope)

        def register(function: H) -> H:
            first, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
            options.setdefault("description", rest)
            options.setdefault("dialects", self.dialects)
            route = Route(
                method=method,
                path=path,
                handler=function,
                scopes=scopes,
                tag=self.tag,
                id=id or _camel_case(function.__name__),
                summary=summary or first.removesuffix("."),
                answer=answer,
                is_inference=is_inference,
                **options,
            )
            ROUTES.append(route)
            return function

        return register

    def endpoint(
        self,
        endpoint: Endpoint,
        *,
        id: str,
        summary: str,
        answer: Content,
        serve: Serve = serve,
        **options: Unpack[RouteOptions],
    ) -> Endpoint:
        """Register an inference path with a JSON body. It needs the scope `infer`."""
        defaults: RouteOptions = {
            "errors": INFERENCE,
            "dialects": (endpoint.dialect,),
            "parameters": ("Prefer",),
            "others": LOAD_STARTED,
            "description": "",
        }
        register = self(
            "POST",
            endpoint.path,
            scope=Scope.INFER,
            answer=answer,
            id=id,
            summary=summary,
            is_inference=True,
            **(defaults | options),
        )
        register(handler(endpoint, serve))
        return endpoint


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
