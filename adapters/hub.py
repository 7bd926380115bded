"""Adapters from a model hub: two files of a repository at a revision, resolved to a commit first."""

import os
from errno import ENOSPC
from pathlib import Path

from adapters.content.faults import quote_value
from adapters.content.forms import CONFIG, MOST, TENSORS, TOKENIZER
from adapters.types import PublicHubSource
from registry.bounds import Bounds
from registry.errors import TooLarge, Unavailable, Unfit
from registry.files.sources import TIMEOUT, endpoint, hub_errors, public_endpoint
from registry.recipes.fields import HubSource
from registry.storage.files import is_full
from registry.storage.reserve import DiskReserve


def download(source: HubSource, folder: Path, bounds: Bounds, reserve: DiskReserve) -> str:
    """Bring adapter_config.json and adapter_model.safetensors of `source` into the empty `folder`. Blocks.

    The server's token is sent unless it is a `PublicHubSource`. Returns the commit that its revision stood for, 40 hex
    digits.

    Raises as `hub_errors`, TooLarge before anything is fetched, Unfit for a repository that holds no adapter,
    OSError for a full disk, Unavailable (storage_full).
    """
    from huggingface_hub import HfApi, snapshot_download  # takes a fifth of a second: not at start
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars("huggingface_hub.snapshot_download")
    disable_progress_bars("huggingface_hub.http_get")
    hub, where = source.hub, f"'{source.hub}' at revision '{source.revision}'"
    token = False if isinstance(source, PublicHubSource) else None
    with hub_errors(source, has_token=token is None):
        api = HfApi(endpoint=endpoint(), token=token)
        info = api.model_info(hub, revision=source.revision, files_metadata=True, timeout=TIMEOUT)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        if info.sha is None:
            raise Unavailable(f"The hub at {public_endpoint()} names no commit for {where}.", code="hub_unavailable")
        _check_files(where, sizes, bounds)
        try:
            names = [CONFIG, TENSORS, *(name for name in TOKENIZER if 0 < sizes.get(name, 0) <= MOST)]
            with reserve.hold(sum(sizes[name] for name in names)):
                snapshot_download(
                    hub, revision=info.sha, allow_patterns=names, local_dir=folder, endpoint=endpoint(),
                    etag_timeout=TIMEOUT, token=token,
                )  # fmt: skip
        except RuntimeError as error:
            if is_full(error, folder):
                raise OSError(ENOSPC, os.strerror(ENOSPC), str(folder)) from error
            raise
    return info.sha


def _check_files(where: str, sizes: dict[str, int], bounds: Bounds) -> None:
    missing = [name for name in (CONFIG, TENSORS) if name not in sizes]
    if missing:
        pickles = [name for name in sizes if name.endswith((".bin", ".pt"))]
        hint = f" {quote_value(pickles[0])} may hold code and is never read." if pickles else ""
        raise Unfit(
            f"{where} holds no adapter that can be read.",
            [f"{name} is missing at the repository's root.{hint}" for name in missing],
            code="unfit_adapter",
        )
    total = sizes[CONFIG] + sizes[TENSORS]
    if total > bounds.adapter_bytes:
        raise TooLarge(f"{where} has {total} bytes, over the limit of {bounds.adapter_bytes}.", param="source.hub")
