"""Locate sources: folders, packages, hubs; and report a hub's failures as our errors."""

import importlib.util
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound, Unavailable, Unfit
from registry.recipes.fields import HubSource, PackageSource, PathSource

NO_TOKEN = "your key reads public repositories only: use one with the scope 'paths', or upload the files"
TIMEOUT = 15.0
"""Seconds for the hub to answer about a repository."""


def endpoint() -> str:
    """The hub's address."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def public_endpoint() -> str:
    """The same for messages: without what a mirror is signed in to with."""
    return re.sub(r"^(\w+://)?[^/]*@", r"\1", endpoint())


def _why(error: Exception) -> str:
    """The reason in words, as far as it is known."""
    if type(error).__name__ == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set"
    for one in (error, error.__cause__):
        if (response := getattr(one, "response", None)) is not None:
            return f"it answered with status {response.status_code}"
    first = type(error.__cause__ or error).__name__
    return "no connection to it" if first.startswith("Connect") else f"what it sent broke off ({first})"


@contextmanager
def hub_errors(source: HubSource, *, has_token: bool = True) -> Iterator[None]:
    """Maps the errors of huggingface_hub by type. has_token: HF_TOKEN is sent, if there is one.

    Raises BadRequest for an invalid id, NotFound for a repository or revision that is not there (or is private),
    Unavailable when the hub does not answer. OSErrors of the disk go on as they are.
    """
    from huggingface_hub import errors  # takes a fifth of a second: not at start

    # The base of all errors of the HTTP library below: httpx or httpx2, as the version of huggingface_hub goes.
    transport = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    hub, repository = public_endpoint(), f"'{source.hub}' at revision '{source.revision}'"
    try:
        yield
    except errors.HFValidationError as error:
        raise BadRequest(f"{quoted(source.hub)} is not a hub id: {error}", param="source.hub") from None
    except errors.GatedRepoError:
        raise NotFound(
            f"{repository} is gated: {'accept its terms on ' + hub + ' and set HF_TOKEN' if has_token else NO_TOKEN}.",
            code="hub_not_found",
        ) from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"'{source.hub}' has no revision '{source.revision}' on {hub}.", code="hub_not_found") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"There is no repository '{source.hub}' on {hub}, or it is private and "
            f"{'HF_TOKEN does not open it' if has_token else NO_TOKEN}.",
            code="hub_not_found",
        ) from None
    except (
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        transport,
        RuntimeError,
    ) as error:  # the last: of hf_xet, which fetches in Rust
        raise Unavailable(
            f"The hub at {hub} did not deliver {repository}: {_why(error)}. Try again later, or put the "
            "files into a folder and name it as the source: {path: ...}.",
            code="hub_unavailable",
            retry_after=30,
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"The server at {hub} does not answer as a hub does: its words on {repository} cannot be read. "
            "Check HF_ENDPOINT, and that no proxy answers with a page of its own.",
            code="hub_unavailable",
            retry_after=30,
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise  # the disk's fault, not the hub's
        raise Unavailable(
            f"The hub at {hub} delivered {repository} cut short. Try again later.",
            code="hub_unavailable",
            retry_after=30,
        ) from None


def locate(source: PathSource | PackageSource) -> Path:
    """Return the folder that `source` names. Raises Unfit when it does not exist.

    Nothing is imported: find_spec imports the parents of a dotted name, and the client may be untrusted.
    """
    if isinstance(source, PathSource):
        path = Path(source.path)
        if not _is_folder(path):
            raise Unfit(f"there is no folder {path}", code="source_not_found")
        return path
    package, *below = source.package.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None  # an invalid name
    if spec is None or not spec.submodule_search_locations:
        raise Unfit(
            f"there is no installed package '{source.package}'; install it, or correct the name",
            code="source_not_found",
        )
    candidates = [Path(root, *below, source.inside) for root in spec.submodule_search_locations]
    for path in candidates:
        if _is_folder(path):
            return path
    raise Unfit(f"package '{source.package}' has no folder '{source.inside}'", code="source_not_found")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long a name, or one with a zero in it
        return False


def something_else(names: Collection[str]) -> str | None:
    """Describe a folder without an adapter by its file names; None: unknown."""
    if "adapter_config.json" in names:
        return None
    checkpoints = [name for name in names if re.fullmatch(r"checkpoint-\d{1,12}", name)]
    if checkpoints:
        last = max(checkpoints, key=lambda name: int(name.partition("-")[2]))
        return f"This is a trainer's output folder. The adapter is in {last}: give that folder."
    if "config.json" in names and any(name.endswith((".safetensors", ".bin", ".gguf")) for name in names):
        return "This is a full model, not an adapter: add it with 'roundhouse models add', or give it a recipe."
    return None
