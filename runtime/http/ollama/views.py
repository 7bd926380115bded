"""Views of models in Ollama's format: in the list, one by one, and in memory."""

from collections.abc import Collection, Mapping

import humanize
import msgspec

from registry.recipes.definition import Task, Tier
from runtime.gateway.names import LATEST
from runtime.gateway.routing.dispatcher import RouterCardView
from runtime.gateway.views.facts import FileFacts
from runtime.gateway.views.values import AdapterCardView, ModelView
from runtime.http.ollama.answers import timestamp

TASKS: Mapping[Task, str] = {Task.CHAT: "completion", Task.EMBED: "embedding"}
"""Tasks that Ollama's clients can use, with Ollama's names for them."""
FOR_EVER = "2262-01-01T00:00:00.000000Z"
"""Expiry of models, which have none: the latest date that fits 64 bits in nanoseconds in any time zone."""


class OllamaDetails(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(msgspec.Struct):
    models: list[OllamaModel]


class OllamaLoadedModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    size_vram: int
    digest: str
    details: OllamaDetails
    expires_at: str
    context_length: int


class OllamaLoaded(msgspec.Struct):
    models: list[OllamaLoadedModel]


class OllamaModelInfo(msgspec.Struct, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


def details(facts: FileFacts, parent: str = "") -> OllamaDetails:
    return OllamaDetails(
        parent_model=parent,
        format=facts.format,
        family=facts.architecture,
        families=[facts.architecture] if facts.architecture else [],
        parameter_size=_billions(facts.parameters),
        quantization_level=facts.quantization,
    )


def with_tag(name: str) -> str:
    """The name with Ollama's tag. Open WebUI accepts only listed names, and appends the tag to those without."""
    return name if ":" in name else f"{name}{LATEST}"


def model_entry(view: ModelView | AdapterCardView, facts: FileFacts) -> OllamaModel:
    """The entry of a model, or of an adapter with the facts of its base."""
    return OllamaModel(
        name=with_tag(view.id),
        model=with_tag(view.id),
        modified_at=timestamp(view.created),
        size=facts.bytes,
        digest=digest(view),
        details=details(facts, view.parent if isinstance(view, AdapterCardView) else ""),
    )


ROUTER = OllamaDetails(family="router", families=["router"])


def router_entry(card: RouterCardView) -> OllamaModel:
    """The entry of a router, which has no files of its own."""
    return OllamaModel(
        name=with_tag(card.id),
        model=with_tag(card.id),
        modified_at=timestamp(card.created),
        size=0,
        digest=card.digest.removeprefix("sha256:"),
        details=ROUTER,
    )


def router_info(card: RouterCardView, context_length: int | None) -> OllamaModelInfo:
    """context_length: of the shortest context among its targets.

    JetBrains' Koog fails to list any model if one with an architecture lacks either of its two lengths.
    """
    info: dict[str, str | int] = {"general.basename": card.id}
    if context_length:
        lengths = {"router.context_length": context_length, "router.embedding_length": 0}
        info |= {"general.architecture": "router", **lengths}
    return OllamaModelInfo(
        modelfile=f"FROM {card.id}\n",
        parameters=_parameters(card.task, context_length),
        template=_template(card.task, card.abilities),
        details=ROUTER,
        model_info=info,
        capabilities=[*([TASKS[card.task]] if card.task in TASKS else []), *card.abilities],
        modified_at=timestamp(card.created),
    )


def digest(view: ModelView | AdapterCardView) -> str:
    """An adapter's digest, or a model's revision: the hub's commit or the beginning of its content's digest."""
    return view.digest.removeprefix("sha256:") if isinstance(view, AdapterCardView) else view.revision


def loaded_entry(view: ModelView, facts: FileFacts) -> OllamaLoadedModel:
    """The entry of a model in memory. `size_vram` is its size on the device, GPU or CPU."""
    return OllamaLoadedModel(
        name=with_tag(view.id),
        model=with_tag(view.id),
        size=view.bytes + view.host_bytes,
        size_vram=view.bytes,
        digest=view.revision,
        details=details(facts),
        expires_at=FOR_EVER,
        context_length=view.context_length or 0,
    )


def is_loaded(view: ModelView) -> bool:
    return view.tier in (Tier.DEVICE, Tier.HOST)


def model_info(view: ModelView | AdapterCardView, facts: FileFacts) -> OllamaModelInfo:
    parent = view.parent if isinstance(view, AdapterCardView) else ""
    name = facts.architecture or "model"
    info: dict[str, str | int] = {"general.architecture": name, "general.basename": view.id}
    if facts.parameters:
        info["general.parameter_count"] = facts.parameters
    if view.context_length:
        info[f"{name}.context_length"] = view.context_length
    if facts.width:
        info[f"{name}.embedding_length"] = facts.width
    return OllamaModelInfo(
        modelfile=f"FROM {parent}\nADAPTER {view.id}\n" if parent else f"FROM {view.id}\n",
        parameters=_parameters(view.task, view.context_length),
        template=_template(view.task, facts.abilities),
        details=details(facts, parent),
        model_info=info,
        capabilities=[*([TASKS[view.task]] if view.task in TASKS else []), *facts.abilities],
        modified_at=timestamp(view.created),
    )


def _parameters(task: Task, context_length: int | None) -> str:
    return f"num_ctx {context_length}" if context_length and task is Task.CHAT else ""


def _template(task: Task, abilities: Collection[str]) -> str:
    """A template for clients such as LiteLLM that search it for tools. The model's own has another format."""
    if task is not Task.CHAT:
        return ""
    return "{{ .System }}{{ .Tools }}{{ .Prompt }}" if "tools" in abilities else "{{ .System }}{{ .Prompt }}"


def _billions(count: int) -> str:
    """A parameter count in Ollama's form: 8.0B, 22.7M."""
    if not count:
        return ""
    text = humanize.metric(count, precision=3)  # '22.7 M', '8.03 G'
    return text.replace(" ", "").replace("G", "B")
