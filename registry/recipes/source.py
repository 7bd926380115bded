"""Where a model or an adapter comes from: a folder, a Python package, or a hub's repository at a fixed revision."""

import re
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from registry.recipes.fields import InsidePath, Strict, Text

_REVISION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}\Z")


def is_revision(text: str) -> bool:
    """Whether it may be a branch, a tag or a commit. A hub's cache has files of such names: it leads out of none."""
    return _REVISION.match(text) is not None and ".." not in text


def _revision(value: str) -> str:
    if not is_revision(value):
        raise PydanticCustomError("revision", "write a branch, a tag or a commit")
    return value


class PathSource(Strict):
    """A folder on this machine; relative paths start at the recipe file's folder."""

    path: Text


class PackageSource(Strict):
    """A folder inside an installed Python package, such as the starter pack."""

    package: Text
    inside: InsidePath = "."


class HubSource(Strict):
    """A repository on a model hub at a fixed revision (a commit; a tag or branch is resolved to one)."""

    hub: Text
    revision: Annotated[Text, AfterValidator(_revision)]


Source = PathSource | PackageSource | HubSource


def _kind_of_source(value: object) -> str | None:
    """The kind of source by its key, so that faults are reported for the intended kind."""
    if isinstance(value, PathSource | PackageSource | HubSource):
        value = value.model_dump()
    keys = [key for key in ("path", "package", "hub") if isinstance(value, dict) and key in value]
    return f"<{keys[0]}>" if len(keys) == 1 else None


AnySource = Annotated[
    Annotated[PathSource, Tag("<path>")]
    | Annotated[PackageSource, Tag("<package>")]
    | Annotated[HubSource, Tag("<hub>")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source",
        custom_error_message="write exactly one of: path; package (and inside); hub and revision",
    ),
]
"""A source as a field: read by the one of its keys `path`, `package`, `hub` that is there."""
