"""Bodies of our own API."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from launch.request import HUB, MAIN, without_host
from registry.base.wording import quoted
from registry.errors import BadRequest
from registry.names import AdapterName
from registry.recipes.fields import GgufSource, HubSource, PackageSource, PathSource, is_revision
from registry.records import PROBE_BYTES
from runtime.gateway.adapters import Registration
from runtime.gateway.views.values import AdapterView, Count, Digest
from runtime.http.bodies import WHOLE


class ProbeBody(BaseModel):
    """Sent whenever the adapter takes a place: the greedy answer must begin with `expected`."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=4096)
    expected: str = Field(min_length=1, max_length=PROBE_BYTES)

    @field_validator("expected")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value.encode()) > PROBE_BYTES:
            raise ValueError(f"at most {PROBE_BYTES} bytes of UTF-8: the beginning of the answer is enough")
        return value


SOURCES = 'write {"path": "/a/folder"}, or {"hub": "owner/name", "revision": "main"}, or one of them as text'
MODEL_SOURCES = 'write "/a/folder", "owner/name@revision" or "package:NAME/inside", or {"path": ...}, {"hub": ...}'
_KINDS: dict[type[object], str] = {PathSource: "<path>", HubSource: "<hub>", PackageSource: "<package>"}
"""Marks of the kinds of source, which pydantic puts into the positions of faults, and `fault_error` drops."""
SourceText = Annotated[str, Field(min_length=1, max_length=4096)]


def _source_kind(value: object) -> str | None:
    """The kind of source, by its type or by a key that only this kind has."""
    if isinstance(value, str):
        return "<text>"
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    kinds = [kind for kind in _KINDS.values() if isinstance(value, dict) and kind.strip("<>") in value]
    return kinds[0] if len(kinds) == 1 else None


def _model_source_kind(value: object) -> str | None:
    """The same for a model's source: a hub's may name one GGUF file."""
    kind = _source_kind(value)
    return "<file>" if kind == "<hub>" and isinstance(value, dict) and "file" in value else kind


def source_text(source: str | PathSource | HubSource | PackageSource) -> str:
    """A source in the form of the command line."""
    match source:
        case PathSource():
            return source.path if source.path.startswith("/") else f"./{source.path}"  # not a hub's name
        case GgufSource():
            return f"{source.hub}/{source.file}@{source.revision}"
        case HubSource():
            return f"{source.hub}@{source.revision}"
        case PackageSource():
            return f"package:{source.package}" + ("" if source.inside == "." else f"/{source.inside}")
        case _:
            return source


def locate_adapter(text: str, param: str) -> PathSource | HubSource:
    """Parse a folder, or `org/name[@revision]` of a hub. Raises BadRequest."""
    if not text:
        raise BadRequest(f"'{param}' is empty: write a folder, or org/name of a hub.", param=param)
    text = without_host(text)
    hub, _, revision = text.partition("@")
    if not HUB.match(hub):
        return PathSource(path=text)
    if not is_revision(revision or MAIN):
        raise BadRequest(f"{quoted(revision)} is not a revision: write a branch, a tag or a commit.", param=param)
    return HubSource(hub=hub, revision=revision or MAIN)


class RegisterRequest(BaseModel):
    """Register an adapter. An existing name gets a new version; the same content again changes nothing."""

    model_config = ConfigDict(extra="forbid")
    name: AdapterName
    base: str = Field(description="id or alias of the base model")
    source: Annotated[
        Annotated[SourceText, Tag("<text>")]
        | Annotated[PathSource, Tag("<path>")]
        | Annotated[HubSource, Tag("<hub>")],
        Discriminator(_source_kind, custom_error_type="source", custom_error_message=SOURCES),
    ]
    alias: str | None = Field(default=None, description="an alias that is pointed at the new version")
    shared: bool | None = Field(
        default=None, description="all teams may use it; null: as it was, and a new one is your team's alone"
    )
    probe: ProbeBody | None = None

    @property
    def located(self) -> PathSource | HubSource:
        """The source, parsed if it is a string. Raises BadRequest."""
        return locate_adapter(self.source, "source") if isinstance(self.source, str) else self.source


class AliasBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: str = Field(description="'v3' or 'sha256:…'")


class RollbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: str | None = None


Value = bool | int | float | str | list[str] | dict[str, bool | int | float | str | list[str] | None] | None


class AddModelBody(BaseModel):
    """Add a model: a recipe is proposed, stored and served."""

    model_config = ConfigDict(extra="forbid")
    source: Annotated[
        Annotated[SourceText, Tag("<text>")]
        | Annotated[PathSource, Tag("<path>")]
        | Annotated[HubSource, Tag("<hub>")]
        | Annotated[GgufSource, Tag("<file>")]
        | Annotated[PackageSource, Tag("<package>")],
        Discriminator(_model_source_kind, custom_error_type="source", custom_error_message=MODEL_SOURCES),
        Field(
            description="a folder of the server's machine (absolute), `org/name[@revision]` of a hub, or "
            "`package:NAME[/inside]`; or the same as an object, as recipes write it"
        ),
    ]
    id: str | None = Field(default=None, max_length=128, description="null: from the source's name")
    revision: str | None = Field(default=None, max_length=200, description="of a hub's repository; null: main")
    overrides: dict[str, Value] | None = Field(
        default=None, max_length=50, description="keys of the recipe with dots, such as `memory.kv_cache`"
    )
    requests: Annotated[
        int, Field(strict=True, ge=1, le=4096, description="the KV cache is sized for so many at once"), WHOLE
    ] = 8
    tokens: Annotated[int, Field(strict=True, ge=16, le=10_000_000, description="of so many tokens each"), WHOLE] = 4096
    dry_run: bool = Field(default=False, strict=True, description="propose, and change nothing")
    stream: bool = Field(default=False, strict=True, description="tell its way here as server-sent events")

    @model_validator(mode="before")
    @classmethod
    def _has_source(cls, body: Any) -> Any:
        """Say what a source is, to clients of other servers that add models by a name of theirs."""
        if isinstance(body, dict) and "source" not in body:
            raise BadRequest(f"Say where the model is in 'source': {MODEL_SOURCES}.", param="source")
        return body


class EditModelBody(BaseModel):
    """Change values of a recipe. null restores a key's default."""

    model_config = ConfigDict(extra="forbid")
    changes: dict[str, Value] = Field(min_length=1, max_length=50, description="keys of the recipe with dots")


class VllmLoadBody(BaseModel):
    """vLLM's own body. Unknown fields are ignored, as in vLLM."""

    lora_name: AdapterName
    lora_path: str
    load_inplace: bool = False
    base_model_name: str | None = None


class VllmUnloadBody(BaseModel):
    lora_name: str
    lora_int_id: int | None = None


def json_answer(
    value: msgspec.Struct | Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    data = msgspec.json.encode(value)
    return Response(data, status, dict(headers or {}), media_type="application/json")


def registration_answer(done: Registration) -> Response:
    return json_answer(
        {**msgspec.structs.asdict(done.adapter), "registered": done.tag, "new": done.is_new},
        201 if done.is_new else 200,
        {"Location": f"/v1/adapters/{done.adapter.name}", **done.headers},
    )


class LoadStartedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["model.load"] = "model.load"
    model: str
    status_url: str
    expected_seconds: Count


class AdapterListView(msgspec.Struct, frozen=True):
    data: list[AdapterView]
    object: Literal["list"] = "list"


class AdapterCheckView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["adapter.check"] = "adapter.check"
    name: str
    base: str
    fit: bool = True
    digest: Digest
    rank: int
    bytes: Count
    notes: list[str]


class HealthView(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    faults: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Adapters of recipes that could not be registered, with the reason."""
    degraded: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Faults: `storage_full` (uploads are refused, or soon will be), `ledger_journalled` (the ledger's disk is full, or
    the fleet's database does not answer; requests are answered and recorded in a journal), `ledger_unavailable`
    (requests are refused), `database_older` (the fleet's database is in an older state and is not used)."""
