"""Requests to add a model, and the notations for its source."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote

from registry.base.wording import quoted
from registry.errors import BadRequest
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Recipe
from registry.recipes.fields import GgufSource, HubSource, PackageSource, PathSource, Source, is_gguf, is_revision

Phase = Literal["looking", "waiting", "added", "fetching", "converting"]


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The traffic for which the KV cache is sized: requests at once, and tokens of each."""

    requests: int = 8
    tokens: int = 4096


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to add a model.

    `source`: an absolute folder, `org/name[@revision]` of a hub, or `package:NAME[/inside]`.
    """

    source: str
    id: str | None = None
    """None to derive it from the source's name."""
    revision: str | None = None
    """Revision of a hub's repository if the source names none; default: its main branch."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Values by dotted keys of the recipe, such as `memory.kv_cache`."""
    working_set: WorkingSet = WorkingSet()
    team: str = DEFAULT_TEAM
    """Teams take turns at checks and at calls to hubs."""


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of an addition. `total` is None if unknown."""

    phase: Phase
    model: str = ""
    completed: int = 0
    """Bytes that were fetched from a hub."""
    total: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AddedModel:
    """The last step: all files are here, and the first request loads the model."""

    recipe: Recipe
    new: bool
    """False if the same model already existed and nothing was changed."""


HUB = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
PACKAGE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
MAIN = "main"
NAMELESS = re.compile(r"^(checkpoint-\d+|model|models|merged|output|out|final|snapshot|[0-9a-f]{40})\Z", re.IGNORECASE)
"""Meaningless folder names, for which the parent's name is used."""
LONGEST = 4096
OLLAMAS = (
    "Names of Ollama's library, such as llama3.2, stand for GGUF files, which are not fetched from there; 'roundhouse "
    "models add ollama:llama3.2' adds one that Ollama has pulled."
)
TAGS = "No tag chooses a file of a hub's repository: name it, as org/name/file.gguf."


_HOST = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)|(?:hf|huggingface):/)/")
_PAGE = re.compile(r"([^/]+/[^/]+)/(?:tree|blob|resolve)/([^/]+)(/.+)?")


def without_host(text: str) -> str:
    """Shorten an address of Hugging Face's hub, as browsers and other servers write it, to `org/name`."""
    host = _HOST.match(text)
    rest = "" if host is None else text[host.end() :].partition("?")[0].rstrip("/")
    if not rest:
        return text
    page = _PAGE.fullmatch(rest)
    return f"{page[1]}{unquote(page[3] or '')}@{unquote(page[2])}" if page else rest


def parse_source(text: str, revision: str | None = None) -> Source:
    """Parse a source from a client. Raises BadRequest for anything else.

    Folders must be absolute, so that answers reveal nothing about the working directory.
    """
    if not text or len(text) > LONGEST or "\0" in text:
        raise BadRequest("Say where the model is: a folder, org/name of a hub, or package:NAME.", param="source")
    if text.startswith("package:"):
        name, _, inside = text.removeprefix("package:").partition("/")
        name = name.replace("-", "_")  # the name of a distribution, as in pip
        if not PACKAGE.match(name) or inside.startswith("/") or ".." in PurePosixPath(inside).parts:
            raise BadRequest(f"{quoted(text)} is not a package: write package:NAME[/inside].", param="source")
        return PackageSource(package=name, inside=inside or ".")
    text = without_host(text)
    hub, at, named = text.partition("@")
    if text.lower().endswith(".gguf") and Path(text).is_absolute() and not revision:
        return PathSource(path=str(Path(text).parent))
    file = ""
    if hub.lower().endswith(".gguf"):
        hub, file = "/".join(hub.split("/")[:2]), "/".join(hub.split("/")[2:])
        if not HUB.match(hub) or not is_gguf(file):
            raise BadRequest(
                f"{quoted(text)}: name a GGUF file by its absolute path on the server, or as org/name/file.gguf.",
                param="source",
            )
    if HUB.match(hub):
        requested = named or revision or MAIN
        if at and (not named or (revision and revision != named)):
            raise BadRequest("Name the revision once: org/name@revision.", param="source")
        if not is_revision(requested):
            raise BadRequest(
                f"{quoted(requested)} is not a revision: write a branch, a tag or a commit.", param="revision"
            )
        if file:
            return GgufSource(hub=hub, revision=requested, file=file)
        return HubSource(hub=hub, revision=requested)
    if revision:
        raise BadRequest("Only a hub's repository has a revision.", param="revision")
    if not Path(text).is_absolute():
        message = f"{quoted(text)}: write a folder's absolute path on the server, or org/name of a hub."
        more = f" {TAGS}" if HUB.match(text.partition(":")[0]) else "" if "/" in text else f" {OLLAMAS}"
        raise BadRequest(message + more, param="source")
    return PathSource(path=str(Path(text)))


def proposed_id(source: Source) -> str:
    """Return an id from the last meaningful name in the source, in lower case."""
    match source:
        case GgufSource():
            parts = [PurePosixPath(source.file).name[: -len(".gguf")]]
        case HubSource():
            parts = [source.hub.rpartition("/")[2]]
        case PackageSource():
            inside = PurePosixPath(source.inside).parts
            parts = [source.package.rpartition(".")[2], *inside]
        case PathSource():
            parts = [*Path(source.path).parts[1:]]
    meaningful = [part for part in parts if not NAMELESS.match(part)]
    name = re.sub(r"[^a-z0-9._-]+", "-", (meaningful or parts or ["model"])[-1].lower()).strip("-._")
    return name[:128] or "model"
