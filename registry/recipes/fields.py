"""Syntax of durations, sizes, money, names and sources in recipes."""

import json
import re
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from registry.byte_size import ByteSize

Flag = bool | int | float | str | list[str | int]


def flags_as_text(flags: object) -> object:
    """Write the values of flags that are mappings as JSON text, as vLLM's command line takes them."""
    if not isinstance(flags, dict):
        return flags
    return {name: _as_text(value) if isinstance(value, dict) else value for name, value in flags.items()}


def _as_text(value: dict[object, object]) -> object:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # such as a date
        return value


MOST = 2**63 - 1
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> object:
    """Convert '10m', '1.5 h', 30 or a timedelta to seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip() or "s"
        try:
            return float(number) * _UNITS[unit]
        except (KeyError, ValueError):
            raise PydanticCustomError("duration", "write a duration such as 30s, 10m or 2h") from None
    return value


def _inside(value: str) -> str:
    if PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
        raise PydanticCustomError("path_inside", "write a path inside the package, without '..' or a leading '/'")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
InsidePath = Annotated[str, AfterValidator(_inside)]
POOL_PATTERN = "^[a-z][a-z0-9_-]{0,31}$"
PoolName = Annotated[str, Field(pattern=POOL_PATTERN)]
Size = Annotated[ByteSize, Field(ge=0, le=2**60)]
"""Bytes, as a number or as text: 512MiB, 4GB."""
Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen, and refuses unknown keys, so that typos are noticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_true_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `device: true`, which pydantic would read as 1."""
        if isinstance(value, bool) and info.field_name in cls.model_fields:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and any(issubclass(kind, int | float) for kind in kinds):
                kind = "byte_size" if ByteSize in kinds else "float_type" if float in kinds else "int_type"
                raise PydanticCustomError(kind, "write a number")
        return value

    @field_validator("*")
    @classmethod
    def _refuse_what_no_frame_carries(cls, value: object) -> object:
        """Refuse numbers above 64 bits: neither a frame to a slot nor a database has them."""
        if isinstance(value, int) and value > MOST:
            raise PydanticCustomError("less_than_equal", "write {le} or less", {"le": MOST})
        return value


def _kinds(annotation: object) -> set[type]:
    """Return the types that a field takes, those of a Literal's values included."""
    parts = get_args(annotation) or (annotation,)
    inner = (get_args(part)[0] if get_origin(part) is Annotated else part for part in parts)
    return {part if isinstance(part, type) else type(part) for part in inner}


_REVISION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}\Z")


def is_revision(text: str) -> bool:
    """Return whether it may be a branch, tag or commit, and is safe as a name in a hub's cache."""
    return _REVISION.match(text) is not None and ".." not in text


def _revision(value: str) -> str:
    if not is_revision(value):
        raise PydanticCustomError("revision", "write a branch, a tag or a commit")
    return value


class PathSource(Strict):
    """A folder on this machine, relative to the recipe file's folder."""

    path: Text


class PackageSource(Strict):
    """A folder inside an installed Python package, such as the starter pack."""

    package: Text
    inside: InsidePath = "."


class HubSource(Strict):
    """A repository on a model hub at a fixed revision (a commit; a tag or branch is resolved to one)."""

    hub: Text
    revision: Annotated[Text, AfterValidator(_revision)]


def _gguf(value: str) -> str:
    if not is_gguf(value):
        raise PydanticCustomError("gguf", "write the path of a .gguf file inside the repository")
    return value


def is_gguf(path: str) -> bool:
    """Return whether it may be the path of a GGUF file inside a repository."""
    parts = path.split("/")
    return path.lower().endswith(".gguf") and len(path) <= 400 and not {"", ".", ".."} & {*parts} and "\\" not in path


class GgufSource(HubSource):
    """One GGUF file in a hub's repository."""

    file: Annotated[Text, AfterValidator(_gguf)]


Source = PathSource | PackageSource | HubSource


def origin(source: Source) -> str:
    """Return a source without a hub's revision. Models of different origin are different models."""
    values = source.model_dump(exclude={"revision"})
    return " ".join(f"{name} {value}" for name, value in values.items())


def _kind_of_source(value: object) -> str | None:
    """Return the kind of source from its key, so that faults are about the intended kind."""
    if isinstance(value, PathSource | PackageSource | HubSource):
        value = value.model_dump()
    keys = [key for key in ("path", "package", "hub") if isinstance(value, dict) and key in value]
    return f"<{keys[0]}>" if len(keys) == 1 else None


def _kind_of_model_source(value: object) -> str | None:
    kind = _kind_of_source(value)
    has_file = isinstance(value, GgufSource) or (isinstance(value, dict) and "file" in value)
    return "<file>" if kind == "<hub>" and has_file else kind


_Tagged = (
    Annotated[PathSource, Tag("<path>")]
    | Annotated[PackageSource, Tag("<package>")]
    | Annotated[HubSource, Tag("<hub>")]
)
AnySource = Annotated[
    _Tagged,
    Discriminator(
        _kind_of_source,
        custom_error_type="source",
        custom_error_message="write exactly one of: path; package (and inside); hub and revision",
    ),
]
"""A source as a field. Its kind is given by which of the keys `path`, `package` and `hub` it has."""
ModelSource = Annotated[
    _Tagged | Annotated[GgufSource, Tag("<file>")],
    Discriminator(
        _kind_of_model_source,
        custom_error_type="source",
        custom_error_message="write exactly one of: path; package (and inside); hub and revision (and file)",
    ),
]
"""A model's source as a field. A hub source may name one GGUF `file`."""
