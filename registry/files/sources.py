"""Locate sources (folders, packages, hubs), and report a hub's failures as our errors."""

import importlib.util
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound, Unavailable, Unfit
from registry.recipes.fields import HubSource, PackageSource, PathSource

NO_TOKEN = "your key reads public repositories only: use one with the scope 'paths', or upload the files"
TIMEOUT = 15.0
"""Seconds for the hub to answer about a repository."""


def endpoint() -> str:
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def public_endpoint() -> str:
    """Return the hub's address without a mirror's credentials, for messages."""
    return re.sub(r"^(\w+://)?[^/]*@", r"\1", endpoint())


def _why(error: Exception) -> str:
    """Describe the reason, as far as it is known."""
    if type(error).__name__ == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set"
    for one in (error, error.__cause__):
        if (response := getattr(one, "response", None)) is not None:
            return f"it answered with status {response.status_code}"
    first = type(error.__cause__ or error).__name__
    return "no connection to it" if first.startswith("Connect") else f"its answer broke off ({first})"


@contextmanager
def hub_errors(source: HubSource, *, has_token: bool = True) -> Iterator[None]:
    """Translate the errors of huggingface_hub. has_token: HF_TOKEN is sent, if it is set.

    Raises BadRequest for an invalid id, NotFound for a repository or revision that does not exist or is private,
    Unavailable if the hub does not answer. The disk's OSErrors are passed on.
    """
    from huggingface_hub import errors  # takes 0.2 s, so not at start

    # The base class of all errors of the HTTP library: httpx or httpx2, depending on the version of huggingface_hub.
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
    ) as error:  # RuntimeError: from hf_xet, which fetches in Rust
        raise Unavailable(
            f"The hub at {hub} did not deliver {repository}: {_why(error)}. Try again later, or put the "
            "files into a folder and name it as the source: {path: ...}.",
            code="hub_unavailable",
            retry_after=30,
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"The server at {hub} does not answer like a hub: its answer about {repository} cannot be read. "
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


class SurplusBytes(Exception):
    """Raised when more bytes arrive than the hub announced, because they could fill the disk."""


def bounded_progress(most: int) -> type:
    """Return a silent progress bar for huggingface_hub that raises SurplusBytes at more than `most` bytes.

    The library compares sizes only after a download, but reports all bytes to its bar before it writes them.
    """
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class BoundedProgress(tqdm):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **{**named, "disable": True})  # type: ignore[no-untyped-call]
            self._come = 0

        def update(self, n: float | None = 1) -> None:
            self._come += int(n or 0)
            if self._come > most:
                raise SurplusBytes

    return BoundedProgress


def locate(source: PathSource | PackageSource) -> Path:
    """Return the folder that `source` names. Raises Unfit when it does not exist.

    Only the top-level package is looked up: find_spec would import the parents of a dotted name, and the client may be
    untrusted.
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
    except (OSError, ValueError):  # a name that is too long or contains NUL
        return False


def something_else(names: Collection[str]) -> str | None:
    """Say what a folder without an adapter is, from its file names; None if unknown."""
    if "adapter_config.json" in names:
        return None
    checkpoints = [name for name in names if re.fullmatch(r"checkpoint-\d{1,12}", name)]
    if checkpoints:
        last = max(checkpoints, key=lambda name: int(name.partition("-")[2]))
        return f"This is a trainer's output folder. The adapter is in {last}: give that folder."
    if "config.json" in names and any(name.endswith((".safetensors", ".bin", ".gguf")) for name in names):
        return "This is a full model, not an adapter: add it with 'roundhouse models add', or give it a recipe."
    return None
