"""A router's version: definition and fitted models, in a folder by digest.

    FOLDER/sha256-<64 hex digits>/router.json, intents.safetensors, complexity.safetensors

The digest covers the canonical JSON of the definition and the models' digests. Folders are written atomically.
"""

import copy
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import Unavailable, Unfit
from registry.recipes.router import RouterSpec, Rule, When, compiled
from registry.storage.files import sync_folder, write_new
from routing.decision import Features
from routing.intents.kinds import Kind, digest_of

if TYPE_CHECKING:  # numpy is imported for the first router with a model
    from routing.intents.model import Acceptance, IntentModel

LONGEST_VALUE = 1024
"""Characters of a header's value that patterns are matched against."""


class Rules:
    """A router's rules, with their patterns compiled once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._patterns = {
            pattern: compiled(pattern) for rule in self.rules for pattern in rule.when.headers.values()
        }  # one object per pattern, even if several rules use it

    def matching(self, features: Features) -> tuple[Rule | None, bool]:
        """Return the first matching rule that names targets, and whether any matching rule says 'stay inside'.

        An earlier rule must not send out what a later one keeps on the machine.
        """
        first: Rule | None = None
        inside = False
        spoken = cache(lambda: features.language or language(features.text))
        for rule in self.rules:
            decides, bounds = first is None and bool(rule.to), rule.stay_inside and not inside
            if (decides or bounds) and self._holds(rule.when, features, spoken):
                first = rule if decides else first
                inside = inside or rule.stay_inside
        return first, inside

    def _holds(self, when: When, features: Features, spoken: Callable[[], str]) -> bool:
        return (
            (not when.endpoint or features.endpoint in when.endpoint)
            and when.tools in (None, features.tools)
            and when.images in (None, features.images)
            and when.json_schema in (None, features.json_schema)
            and (when.longer_than is None or features.characters > when.longer_than)
            and (when.shorter_than is None or features.characters < when.shorter_than)
            and (not when.team or features.team in when.team)
            and (not when.service_class or features.service_class in when.service_class)
            and self._headers(when.headers, features.headers)
            and (not when.language or spoken() in when.language)
        )

    def _headers(self, patterns: Mapping[str, str], sent: Mapping[str, str]) -> bool:
        return all(
            name in sent and self._patterns[pattern].search(sent[name][:LONGEST_VALUE]) is not None
            for name, pattern in patterns.items()
        )


def language(text: str) -> str:
    """Return the language as two letters of ISO 639-1, '' for none. A guess for short texts."""
    if not text:
        return ""
    import py3langid  # 0.1 s and 30 MB, needed only by routers with such a rule

    return str(py3langid.classify(text[:2000])[0])


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    spec: RouterSpec
    tag: str = "v1"
    """Tag of its version."""
    digest: str = ""
    intents: "IntentModel | None" = None
    complexity: "Acceptance | None" = None
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", Rules(self.spec.rules))

    def with_tag(self, tag: str) -> "Router":
        """Return the same router as another version, without compiling it again."""
        renamed_router = copy.copy(self)
        object.__setattr__(renamed_router, "tag", tag)
        return renamed_router

    @property
    def embedding(self) -> str | None:
        """The embedding model that its fitted models use.

        None if they use none, or if the definition names another model, whose vectors do not fit.
        """
        configured = self.spec.intents.embedding if self.spec.intents else None
        names = [model.heads.embedding for model in (self.intents, self.complexity) if model is not None]
        return next((name for name in names if name is not None and configured in (None, name)), None)

    def read(self, text: str) -> str:
        """Return the text to embed, as the router's intents read it."""
        return text if self.intents is None else self.intents.read(text)

    @property
    def threshold(self) -> float | None:
        """Threshold of its intents, else of its complexity: configured or fitted."""
        if self.spec.intents is not None and self.intents is not None:
            fitted = self.intents.heads.both or self.intents.heads.alone
            return fitted.threshold if self.spec.intents.threshold is None else self.spec.intents.threshold
        if self.spec.complexity is not None and self.complexity is not None:
            configured = self.spec.complexity.threshold
            return self.complexity.threshold if configured is None else configured
        return None

    @property
    def label(self) -> str:
        """`auto@v1`, as answers show it."""
        return f"{self.spec.id}@{self.tag}"


KINDS: tuple[Kind, ...] = ("intents", "complexity")
_DEFINITION = "router.json"
_CHANGING = ".changing"


class _PackedRouter(msgspec.Struct, frozen=True, array_like=True):
    definition: bytes
    models: list[tuple[Kind, bytes]]


@dataclass(frozen=True, slots=True)
class RouterContent:
    """A router's content without its origin: no `source`, no `version`."""

    spec: RouterSpec
    models: tuple[tuple[Kind, bytes], ...] = ()

    @property
    def definition(self) -> bytes:
        fields = self.spec.model_dump(mode="json", exclude={"source", "version"}, exclude_defaults=True)
        return json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        hashed = self.definition + "".join(f"\n{kind} {digest_of(data)}" for kind, data in sorted(self.models)).encode()
        return f"sha256:{hashlib.sha256(hashed).hexdigest()}"

    @property
    def size(self) -> int:
        return len(self.definition) + sum(len(data) for _, data in self.models)

    def model(self, kind: Kind) -> bytes | None:
        return dict(self.models).get(kind)

    def with_model(self, kind: Kind, data: bytes) -> "RouterContent":
        return RouterContent(self.spec, tuple({**dict(self.models), kind: data}.items()))

    def packed(self) -> bytes:
        """Pack the content for another server."""
        return msgspec.msgpack.encode(_PackedRouter(self.definition, list(self.models)))

    @classmethod
    def unpacked(cls, data: bytes, digest: str) -> Self:
        """Unpack another server's copy. Raises Unfit (wrong_copy) unless it has this digest."""
        try:
            packed = msgspec.msgpack.decode(data, type=_PackedRouter)
            content = cls(RouterSpec.model_validate_json(packed.definition), tuple(packed.models))
        except (*NOT_JSON, ValueError) as error:
            raise Unfit("This is not a copy of the router: it cannot be read.", code="wrong_copy") from error
        if content.digest != digest:
            raise Unfit(f"This is not a copy of the router: its digest is {content.digest}.", code="wrong_copy")
        return content

    def router(self, tag: str) -> Router:
        """Return the router, ready to decide. Raises Unfit (bad_router_model)."""
        if not self.models:
            return Router(self.spec, tag, self.digest)
        from routing.intents.model import Acceptance, IntentModel, from_bytes

        fitted = {kind: from_bytes(data) for kind, data in self.models}
        intents, complexity = fitted.get("intents"), fitted.get("complexity")
        if not isinstance(intents, IntentModel | None) or not isinstance(complexity, Acceptance | None):
            raise Unfit("The router's model cannot be used.", ["it is of the wrong kind"], code="bad_router_model")
        return Router(self.spec, tag, self.digest, intents, complexity)


def models_in(folder: Path, most: int | None = None) -> tuple[tuple[Kind, bytes], ...]:
    """Return the fitted models in a folder. most: bytes of each. Raises Unfit."""
    models: list[tuple[Kind, bytes]] = []
    for kind in KINDS:
        file = folder / f"{kind}.safetensors"
        try:
            if file.is_file() and not file.is_symlink():
                if most is not None and file.stat().st_size > most:
                    raise Unfit(f"{file.name} is over {most} bytes (--bounds fitted_bytes).", code="bad_router_model")
                models.append((kind, file.read_bytes()))
        except OSError as error:
            raise Unfit(f"{file.name} cannot be read: {error.strerror}.", code="bad_router_model") from error
    return tuple(models)


class RouterContentStore:
    """Router contents as files. Calls block. One writer at a time: the data directory is locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, content: RouterContent) -> None:
        """Write the content, replacing damaged files. Raises Unavailable (disk_full)."""
        folder = self._folder(content.digest)
        if folder.is_dir():
            try:
                self.read(content.digest)
            except Unfit:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                return
        half = self.folder / f".{secrets.token_hex(8)}.tmp"
        try:
            self.folder.mkdir(
                mode=0o700, exist_ok=True
            )  # only below an existing data directory: a moved one must raise
            half.mkdir(mode=0o700)
            write_new(half / _DEFINITION, content.definition)
            for kind, data in content.models:
                write_new(half / f"{kind}.safetensors", data)
            sync_folder(half)
            os.replace(half, folder)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise Unavailable(
                f"The router cannot be written to {self.folder}: {error.strerror}. Nothing was changed.",
                code="disk_full",
            ) from error

    def read(self, digest: str) -> RouterContent:
        """Return the content. Raises Unfit if the folder is missing or was changed."""
        folder = self._folder(digest)
        try:
            spec = RouterSpec.model_validate_json((folder / _DEFINITION).read_bytes())
        except (OSError, ValueError) as error:
            problem = f"The router's files in {folder} cannot be read. Remove the router, and add it again."
            raise Unfit(problem, code="bad_router_model") from error
        content = RouterContent(spec, models_in(folder))
        if content.digest != digest:
            problem = f"The router's files in {folder} were changed. Remove the router, and add it again."
            raise Unfit(problem, code="bad_router_model")
        return content

    def has(self, digest: str) -> bool:
        """Whether its folder exists, readable or not."""
        return self._folder(digest).is_dir()

    def tidy(self, used: Iterable[str], removed: Iterable[str], *, keep_others: bool) -> int:
        """Remove folders that no version uses, and unfinished ones of a killed server. Returns how many are left.

        removed: digests of versions that were just removed. keep_others: other unused folders stay, because the state
        may have been lost, or is in another database than before, except those of an interrupted change (`mark`).
        """
        keep, gone = ({self._folder(digest).name for digest in digests} for digests in (used, removed))
        unused = [folder for folder in self.folder.glob("*") if folder.name not in keep]
        gone |= {file.name[1:].removesuffix(_CHANGING) for file in self._marks()}
        unknown = [folder for folder in unused if folder.name not in gone and not folder.name.startswith(".")]
        if not keep_others:
            unknown = []
        for folder in unused:
            if folder not in unknown:
                shutil.rmtree(folder, ignore_errors=True)
        self.unmark()
        return len(unknown)

    def mark(self, digests: Iterable[str]) -> None:
        """Mark contents before a change that adds them to the state or removes them, in case it is interrupted."""
        for digest in digests:
            with suppress(OSError):  # as on a full disk: they would stay, and be logged
                self.folder.mkdir(mode=0o700, exist_ok=True)
                (self.folder / f".{self._folder(digest).name}{_CHANGING}").touch()

    def unmark(self) -> None:
        """Remove all marks, once a change has ended."""
        for file in self._marks():
            file.unlink(missing_ok=True)

    def _marks(self) -> list[Path]:
        return list(self.folder.glob(f".*{_CHANGING}"))

    def _folder(self, digest: str) -> Path:
        return self.folder / digest.replace(":", "-")
