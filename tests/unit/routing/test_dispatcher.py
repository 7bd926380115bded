"""Dispatching requests to targets: features of requests, conversations, and lookups for decisions."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from models.messages import EmbedResult
from registry.errors import NotFound
from registry.files.context import Ability
from registry.recipes.definition import Task
from registry.recipes.router import Conversation, Intents, RouterSpec
from routing.routers.content import Router
from runtime.gateway.backend import TargetState
from runtime.gateway.context import RequestContext
from runtime.gateway.names import ModelRef
from runtime.gateway.request import Request
from runtime.gateway.routing.dispatcher import RouterCardView, RouterDispatcher, Targets, route_input_of
from runtime.gateway.target import Target
from runtime.http.chat.endpoints import ENDPOINTS
from tenants.caller import Caller
from tests.unit.routing.made import CHAT, COMPLETIONS, MESSAGES, RESPONSES, routers

BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}


@dataclass
class World:
    """Targets that may be removed or too expensive, and an embedding model that may be resident."""

    gone: set[str] = field(default_factory=set)
    resident: set[str] = field(default_factory=set)
    dear: set[str] = field(default_factory=set)
    contexts: dict[str, int] = field(default_factory=dict)

    def resolve(self, expected: ModelRef, caller: Caller) -> Target:
        name = str(expected.name)
        if name in self.gone:
            raise NotFound("gone")
        return Target(name, name, "r", abilities=frozenset((Ability.VISION, Ability.TOOLS)))

    def affords(self, caller: Caller, calls: Any, context_of: Any) -> Any:
        return lambda target: target.model not in self.dear

    def backend_of(self, target: Target) -> "World":
        return self

    def state_of(self, target: Target) -> TargetState:
        is_local = target.model != "away"
        return TargetState(is_local, is_resident=not is_local or target.model in self.resident, waiting=0)

    def context_length(self, target: Target) -> int | None:
        return self.contexts.get(target.model)

    @asynccontextmanager
    async def lease(self, request: Request, target: Target) -> Any:
        async def run(request: Any) -> Any:
            rng = np.random.default_rng(len(request.inputs[0]))
            vector = rng.normal(size=8).astype("<f4")
            yield EmbedResult(vectors=(vector / np.linalg.norm(vector)).tobytes(), dimensions=8, tokens=[1])

        yield SimpleNamespace(run=run)

    def has_room(self, caller: Caller, target: Target, call: Any) -> bool:
        return target.model not in self.dear

    def dispatcher(self) -> RouterDispatcher:
        return RouterDispatcher(None, self, self)  # type: ignore[arg-type]


def test_all_dialects_have_the_same_features() -> None:
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "yes"}]
    turns += [{"role": "user", "content": [{"type": "text", "text": "two"}]}]
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}]})
    for path, sent in (
        (CHAT, {"messages": [{"role": "system", "content": "be kind"}, *turns]}),
        (MESSAGES, {"system": [{"type": "text", "text": "be kind"}], "messages": turns}),
        (RESPONSES, {"instructions": "be kind", "input": turns}),
    ):
        calls = BY_PATH[path].parse(msgspec.json.encode({"model": "r", **sent}), {}).calls(None)
        requested = route_input_of(path, calls, RequestContext("1"), spec)
        reported = requested.features.text, requested.features.characters, requested.is_continued
        assert reported == ("two", len("be kind" + "one" + "yes" + "two"), True), path


def test_a_conversation_is_identified_by_router_first_turns_user_and_team() -> None:
    def key(text: str, team: str = "a", router: str = "r", **more: Any) -> bytes | None:
        spec = RouterSpec.model_validate({"id": router, "targets": [{"name": "small"}]})
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}]
        sent = {"model": "r", "messages": [*turns, {"role": "user", "content": "more"}], **more}
        calls = BY_PATH[CHAT].parse(msgspec.json.encode(sent), {}).calls(None)
        return route_input_of(CHAT, calls, RequestContext("1", Caller(team)), spec).conversation

    assert key("one") == key("one")
    anna, ben = key("one", user="anna"), key("one", user="ben")
    assert (
        len({key("one"), key("two"), key("one", "b"), key("one", router="s"), anna, ben, key("two", user="anna")}) == 7
    )
    assert key("one", metadata={"user_id": "anna"}) == anna, "Anthropic's field for the user"


def test_all_prompts_of_a_completion_count() -> None:
    """The text is that of the first prompt, the length that of all of them."""
    calls = (
        BY_PATH[COMPLETIONS].parse(msgspec.json.encode({"model": "r", "prompt": ["one", "x" * 5000]}), {}).calls(None)
    )
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}]})
    requested = route_input_of(COMPLETIONS, calls, RequestContext("1"), spec)
    assert (requested.features.text, requested.features.characters, requested.is_continued) == ("one", 5003, False)


USER = {"role": "user", "content": "weather?"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
CALL = {"type": "function", "id": "1", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "turns", "image"),
    [
        (CHAT, [{"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "sunny"}], False),
        (MESSAGES, [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
                        {"type": "text", "text": "sunny"}, PICTURE]}]}], True),
        (RESPONSES, [{"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
                     {"type": "function_call_output", "call_id": "1", "output": [
                         {"type": "input_text", "text": "sunny"}, {"type": "input_image", "image_url": "data:,"}]}],
         True),
    ],
)  # fmt: skip
def test_tool_results_count_as_prompt_and_continue_the_conversation(
    path: str, turns: list[dict[str, Any]], image: bool
) -> None:
    """A request with a tool's picture needs a model with vision, and an agent's requests stay with one target."""
    sent = {"model": "r", "max_tokens": 5, "input" if path == RESPONSES else "messages": [USER, *turns]}
    calls = BY_PATH[path].parse(msgspec.json.encode(sent), {}).calls(None)
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}]})
    requested = route_input_of(path, calls, RequestContext("1"), spec)
    assert (requested.features.text, requested.features.characters) == ("weather?", len("weather?sunny"))
    assert (requested.features.images, requested.is_continued) == (image, True)


def test_reasoning_that_a_client_sends_back_is_not_the_users_text() -> None:
    thought = {"type": "reasoning", "id": "1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    sent = {"model": "r", "input": [USER, thought]}
    calls = BY_PATH[RESPONSES].parse(msgspec.json.encode(sent), {}).calls(None)
    requested = route_input_of(
        RESPONSES, calls, RequestContext("1"), RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}]})
    )
    reported = requested.features.text, requested.features.characters, requested.is_continued
    assert reported == ("weather?", len("weather?Hm."), True)


async def test_the_same_conversation_header_differs_between_routers() -> None:
    """Routers have different targets, so that one router's choice does not apply to another."""
    made = {}
    for name in ("r", "s"):
        spec = RouterSpec.model_validate({"id": name, "targets": [{"name": "small"}]})
        context = RequestContext("1", headers=((b"x-conversation-id", b"c"),))
        made[name] = route_input_of(CHAT, (), context, spec).conversation
    assert made["r"] != made["s"]


@pytest.mark.parametrize(
    ("path", "more", "bound"),
    [
        (CHAT, {"response_format": {"type": "json_schema"}}, True),
        (CHAT, {"guided_json_object": True}, True),
        (CHAT, {"response_format": {"type": "text"}}, False),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, True),
        (MESSAGES, {"output_config": {"effort": "low"}}, False),
        (MESSAGES, {"output_format": {"type": "json_schema"}}, True),
        (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, True),
        (RESPONSES, {"text": {"format": {"type": "text"}}}, False),
    ],
)
def test_a_schema_is_recognised_in_each_dialect(path: str, more: dict[str, Any], bound: bool) -> None:
    stated = {"input": "hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "hi"}]}
    calls = BY_PATH[path].parse(msgspec.json.encode({"model": "r", "max_tokens": 5, **stated, **more}), {}).calls(None)
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}]})
    assert route_input_of(path, calls, RequestContext("1"), spec).features.json_schema is bound


async def test_a_text_is_embedded_only_on_this_machine() -> None:
    """An embedding model of a provider is not used, since texts that must stay inside would leave."""
    intents = {"routes": {"weather": ["small"]}, "embedding": "away"}
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}], "intents": intents})
    world = World(resident={"vectors"})
    fitted = routers()[0].intents
    assert fitted is not None
    for name, is_used in (("away", False), ("vectors", True)):
        named = spec.model_copy(update={"intents": Intents(routes=intents["routes"], embedding=name)})
        model = replace(fitted, heads=replace(fitted.heads, embedding=name))
        request = Request(RequestContext("1"), CHAT)
        found = await world.dispatcher().vector(Router(named, intents=model), "rain in rome", request)
        assert (found is not None) is is_used
        assert (request.routing_tokens > 0) is is_used, "the request pays for the embedding"
    world.dear = {"vectors"}
    assert await world.dispatcher().vector(Router(named, intents=model), "rain in rome", request) is None


async def test_a_spent_budget_leaves_the_targets_that_are_free() -> None:
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "big"}, {"name": "small"}]})
    world = World(resident={"big"})
    dispatcher, context = world.dispatcher(), Request(RequestContext("1"), CHAT)
    calls = BY_PATH[CHAT].parse(b'{"model": "r", "messages": []}', {}).calls(None)
    assert (await dispatcher.explain(Router(spec), CHAT, calls, ModelRef(Task.CHAT), context))[1].target == "big"
    world.dear = {"big"}
    assert (await dispatcher.explain(Router(spec), CHAT, calls, ModelRef(Task.CHAT), context))[1].target == "small"


@pytest.mark.parametrize(("contexts", "length"), [({"a": 512, "b": 256}, 256), ({}, None)])
def test_the_context_of_a_router_is_its_shortest_known_one(contexts: dict[str, int], length: int | None) -> None:
    card = RouterCardView(
        id="auto", created=0, task=Task.CHAT, version="v1", digest="", targets=["a", "b", "away"], abilities=[],
        description="",
    )  # fmt: skip
    assert World(contexts=contexts).dispatcher().context_length(card, Caller("default")) == length


def test_another_teams_target_is_hidden() -> None:
    """A target that does not exist is shown, as the router's author needs to know."""

    class Theirs(World):
        def resolve(self, expected: ModelRef, caller: Caller) -> Target:
            if expected.name == "small" and caller.team != "default":
                raise NotFound("another team's")
            return super().resolve(expected, caller)

    world = Theirs(gone={"big"})
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "small"}, {"name": "big"}]})
    targets = Targets(world, world)
    for team, named in (("default", {"small", "big"}), ("legal", {"big"})):
        facts = targets.facts(spec, Caller(team)).targets
        assert {name for name, fact in facts.items() if fact.is_allowed} == named


async def test_a_version_without_conversations_ignores_them() -> None:
    """Conversations belong to a router, whichever of its versions began them."""
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "big"}, {"name": "small"}]})
    world = World(resident={"big"})
    dispatcher, context = world.dispatcher(), RequestContext("1", headers=((b"x-conversation-id", b"c"),))
    request = Request(context, CHAT)
    request.understood(ModelRef(Task.CHAT, "r"), lambda _: ())
    assert (await dispatcher.route(Router(spec), request)).model == "big"
    world.resident = {"small"}
    for stay, target in ((1800.0, "big"), (0.0, "small")):
        made = Router(spec.model_copy(update={"conversation": Conversation(stay=stay)}))
        assert (await dispatcher.explain(made, CHAT, (), ModelRef(Task.CHAT), request))[1].target == target


def test_a_conversation_has_one_draw_and_other_requests_one_each() -> None:
    targets = [{"name": "big", "weight": 95}, {"name": "small", "weight": 5}]
    spec = RouterSpec.model_validate({"id": "r", "targets": targets})
    anew = spec.model_copy(update={"conversation": Conversation(stay=0)})

    def draw(id_: str, text: str = "", answered: bool = False, of: RouterSpec = spec, **more: Any) -> float:
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}, USER]
        sent = {"model": "r", "messages": turns if answered else turns[:1]}
        calls = BY_PATH[CHAT].parse(msgspec.json.encode(sent), {}).calls(None) if text else ()
        return route_input_of(CHAT, calls, RequestContext(id_, **more), of).features.draw

    assert draw("1", "hello") == draw("2", "hello") == draw("3", "hello", answered=True)
    assert len({draw("1", f"hello {number}") for number in range(100)}) == 100
    assert draw("1", "hello", caller=Caller("other")) != draw("1", "hello")
    header = {"headers": ((b"x-conversation-id", b"c"),)}
    assert draw("1", "hello", **header) == draw("2", "bye", **header) != draw("1", "hello")
    for more in ({}, {"text": "hello", "of": anew}):
        draws = [draw(f"id-{number}", **more) for number in range(2000)]  # type: ignore[arg-type]
        assert min(draws) >= 0
        assert max(draws) < 1
        assert 60 < sum(number >= 0.95 for number in draws) < 140, "a twentieth of 2,000, and always the same"
    assert draw("1", "hello", of=anew) == draw("1", "bye", of=anew)


async def test_a_target_removed_during_the_embedding_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was chosen, and the client got a 404 for a name that it had not sent."""
    made, world = routers()[0], World(resident={"small", "vectors"})
    lease = world.lease

    @asynccontextmanager
    async def slow(request: Request, target: Target) -> Any:
        world.gone = {"small"}
        async with lease(request, target) as found:
            yield found

    monkeypatch.setattr(world, "lease", slow)
    calls = BY_PATH[CHAT].parse(msgspec.json.encode({"model": "r", "messages": [USER]}), {}).calls(None)
    assert (
        await world.dispatcher().explain(made, CHAT, calls, ModelRef(Task.CHAT), Request(RequestContext("1"), CHAT))
    )[1].target != "small"
    world.gone = set()
    request = Request(RequestContext("1"), CHAT)
    request.understood(ModelRef(Task.CHAT, "r"), lambda _: calls)
    assert (await world.dispatcher().route(made, request)).model != "small"


async def test_a_conversation_of_another_server_keeps_its_target() -> None:
    """Other servers are queried only for unknown conversations, and informed once per half of the stay."""
    spec = RouterSpec.model_validate({"id": "r", "targets": [{"name": "big"}, {"name": "small"}]})
    world, announced, requested = World(resident={"small"}), list[tuple[str, float]](), list[bytes]()
    dispatcher, context = world.dispatcher(), RequestContext("1", headers=((b"x-conversation-id", b"c"),))

    async def find(key: bytes) -> str | None:
        requested.append(key)
        return "big"

    others: Any = SimpleNamespace(find=find, tell=lambda _key, target, seconds: announced.append((target, seconds)))
    dispatcher.others = others
    request = Request(context, CHAT)
    request.understood(ModelRef(Task.CHAT, "r"), lambda _: ())
    for _ in range(3):
        assert (await dispatcher.route(Router(spec), request)).model == "big"
    assert (len(requested), announced) == (1, [("big", spec.conversation.stay)])
