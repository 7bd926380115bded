"""Adapters from a model hub: two files of a repository at a revision, resolved to a commit first.

HF_ENDPOINT and HF_TOKEN are honoured, as huggingface_hub does; its errors are mapped here, by type.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from adapters.content.faults import shown
from adapters.content.validate import CONFIG, TENSORS
from adapters.types import Limits
from registry.errors import BadRequest, NotFound, RoundhouseError, TooLarge, Unavailable, Unfit

_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Download:
    folder: Path
    commit: str
    """40 hex digits: what the revision stood for."""


def download(hub: str, revision: str, folder: Path, limits: Limits) -> Download:
    """Bring adapter_config.json and adapter_model.safetensors of `hub` into the empty `folder`. Blocks.

    Raises BadRequest for an id that is none, NotFound for a repository or revision that is not there (or is private),
    TooLarge before anything is fetched, Unfit for a repository that holds no adapter, Unavailable when the hub does
    not answer.
    """
    from huggingface_hub import HfApi, errors, snapshot_download  # takes a fifth of a second: not at start
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars("huggingface_hub.snapshot_download")
    disable_progress_bars("huggingface_hub.http_get")
    # The base of all errors of the HTTP library below: httpx or httpx2, as the version of huggingface_hub goes.
    transport = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    where = f"'{hub}' at revision '{revision}'"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        info = HfApi(endpoint=endpoint).model_info(hub, revision=revision, files_metadata=True, timeout=_TIMEOUT)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        if info.sha is None:
            raise Unavailable(f"The hub at {endpoint} names no commit for {where}.", code="hub_unavailable")
        _check_files(where, sizes, limits)
        snapshot_download(
            hub, revision=info.sha, allow_patterns=[CONFIG, TENSORS], local_dir=folder, endpoint=endpoint,
            etag_timeout=_TIMEOUT,
        )  # fmt: skip
    except RoundhouseError:
        raise
    except errors.HFValidationError as error:
        raise BadRequest(f"{shown(hub)} is no hub id: {error}", param="source.hub") from None
    except errors.GatedRepoError:
        raise NotFound(f"{where} is gated: accept its terms and set HF_TOKEN.", code="hub_not_found") from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"'{hub}' has no revision '{revision}' on {endpoint}.", code="hub_not_found") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"There is no repository '{hub}' on {endpoint}, or it is private and HF_TOKEN does not open it.",
            code="hub_not_found",
        ) from None
    except (
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        transport,
    ) as error:
        raise Unavailable(
            f"The hub at {endpoint} did not deliver {where}: {type(error).__name__}. Try again later.",
            code="hub_unavailable", retry_after=30,
        ) from None  # fmt: skip
    except OSError as error:
        if error.errno is not None:
            raise  # the disk's fault, not the hub's
        raise Unavailable(f"The hub at {endpoint} delivered {where} cut short.", code="hub_unavailable") from None
    return Download(folder, info.sha)


def _check_files(where: str, sizes: dict[str, int], limits: Limits) -> None:
    missing = [name for name in (CONFIG, TENSORS) if name not in sizes]
    if missing:
        pickles = [name for name in sizes if name.endswith((".bin", ".pt"))]
        hint = f" {shown(pickles[0])} may hold code and is never read." if pickles else ""
        raise Unfit(
            f"{where} holds no adapter that can be read.",
            [f"{name} is missing at the repository's root.{hint}" for name in missing],
            code="unfit_adapter",
        )
    total = sizes[CONFIG] + sizes[TENSORS]
    if total > limits.adapter_bytes:
        raise TooLarge(f"{where} has {total} bytes, over the limit of {limits.adapter_bytes}.", param="source.hub")
