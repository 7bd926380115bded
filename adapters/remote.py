"""Download adapters from hubs, and from s3://, gs:// and https:// addresses through fsspec."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any

from adapters.content.faults import quote_value
from adapters.content.forms import CONFIG, MOST, TENSORS, TOKENIZER
from adapters.types import PublicHubSource, UrlSource
from registry.base.wording import quoted
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, TooLarge, Unavailable, Unfit
from registry.files.sources import TIMEOUT, SurplusBytes, bounded_progress, endpoint, hub_errors, public_endpoint
from registry.recipes.fields import HubSource
from registry.storage.files import is_full
from registry.storage.reserve import DiskReserve

SCHEMES = ("s3", "gs", "https")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
MOST_NAME = 60
"""Most characters of an archive's name that are kept, since a disk allows 255 bytes."""
CHAIN = "::"
"""fsspec's separator of chained addresses, of which a later one may be a file on this machine."""
BLOCK = 1 << 20
READ_TIMEOUT = 60.0
"""Seconds without a byte."""


def is_archive(url: str) -> bool:
    """Return whether an address names an archive instead of an adapter's folder."""
    return bool(_archive_name(url))


def _archive_name(url: str) -> str:
    """Return an archive's name, which a query such as a store's signature may follow, or which may end one."""
    names = (part.rstrip("/").rpartition("/")[2] for part in (url.partition("?")[0], url))
    return next((name for name in names if name.lower().endswith(ARCHIVES)), "")


def download(source: UrlSource, folder: Path, bounds: Bounds, reserve: DiskReserve) -> None:
    """Download an archive, or the files of an adapter's folder, into the empty `folder`. Blocks.

    Raises BadRequest for a scheme that this server cannot read, NotFound, TooLarge, Unavailable (hub_unavailable,
    storage_full), OSError for a full disk.
    """
    url = source.url.rstrip("/")
    system, path = _file_system(url)
    if name := _archive_name(url):
        _copy(system, path, folder / name[-MOST_NAME:], bounds.adapter_bytes, reserve)
        return
    for name in (CONFIG, TENSORS, *TOKENIZER):
        most = {CONFIG: bounds.adapter_config_bytes, TENSORS: bounds.adapter_bytes}.get(name, MOST)
        try:
            _copy(system, f"{path}/{name}", folder / name, most, reserve)
        except NotFound:
            if name not in TOKENIZER:
                raise


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    scheme = url.partition("://")[0]
    options: dict[str, Any] = {"skip_instance_cache": True}
    if CHAIN in url:
        raise BadRequest(
            f"An address with '{CHAIN}' chains several: write a single one, or upload the adapter.",
            code="source_not_supported",
        )
    if scheme in ("https", "http"):
        from aiohttp import ClientTimeout

        from adapters.remote_hosts import SourceClient

        waits = ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=READ_TIMEOUT)
        options |= {
            "ssl": ssl.create_default_context(), "client_kwargs": {"timeout": waits}, "get_client": SourceClient(url)
        }  # fmt: skip
    try:
        return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]
    except ImportError:
        package = {"s3": "s3fs", "gs": "gcsfs"}.get(scheme, f"fsspec's part for {scheme}")
        raise BadRequest(
            f"This server cannot read {scheme}:// yet: install {package} in its environment, or upload the adapter.",
            code="source_not_supported",
        ) from None


def _copy(system: Any, path: str, target: Path, most: int, reserve: DiskReserve) -> None:
    with _errors(path):
        size = system.info(path).get("size") or 0
    if size > most:
        raise _too_large(path, most)
    with reserve.hold(size or most), target.open("xb") as file:
        for block in _blocks(system, path):
            if file.tell() + len(block) > most:
                raise _too_large(path, most)
            file.write(block)
            if not target.exists():  # the caller gave up, and an open file outlives its folder
                raise FileNotFoundError(target)


def _blocks(system: Any, path: str) -> Iterator[bytes]:
    streamed = {"block_size": 0} if "http" in system.protocol else {"cache_type": "none"}
    with _errors(path):
        source = system.open(path, "rb", **streamed)
    with source:
        while True:
            with _errors(path):
                block = source.read(BLOCK)
            if not block:
                return
            yield block


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Translate the errors of many libraries about a remote server, but not those of the disk."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        cause = error.__cause__ or error.__context__
        _check_address(path, error)
        if cause is not None and not 400 <= getattr(cause, "status", 404 if _is_missing(cause) else 0) < 500:
            raise _unreadable(path, cause) from cause
        problem = f"There is no {quoted(path)} that this server may read."
        if "?" in path:
            problem += " If the address was signed, it may have expired: sign a new one."
        raise NotFound(problem, code="source_not_found") from None
    except Exception as error:
        _check_address(path, error)
        raise _unreadable(path, error) from error


def _check_address(path: str, error: Exception) -> None:
    """Raise BadRequest if an address was refused, as a retry would not help."""
    from adapters.remote_hosts import refusal_of

    if (refused := refusal_of(error)) is not None:
        raise BadRequest(f"{quoted(path)} cannot be read: {refused}.", code="source_not_supported") from None


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError | PermissionError | KeyError)


def _unreadable(path: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"{quoted(path)} could not be read ({type(error).__name__}): try again.", code="hub_unavailable", retry_after=10
    )


def _too_large(path: str, most: int) -> TooLarge:
    return TooLarge(f"{quoted(path)} has more than {most} bytes.")


def download_repository(source: HubSource, folder: Path, bounds: Bounds, reserve: DiskReserve) -> str:
    """Download an adapter's files from a hub into the empty `folder`. Blocks.

    The server's token is sent unless `source` is a `PublicHubSource`. Returns the revision's commit, 40 hex digits.

    Raises as `hub_errors`, TooLarge before the download, Unfit for a repository without an adapter, OSError for a full
    disk, Unavailable (storage_full; bad_download for more bytes than announced).
    """
    from huggingface_hub import HfApi, snapshot_download  # takes 0.2 s, so not at start
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars("huggingface_hub.snapshot_download")
    disable_progress_bars("huggingface_hub.http_get")
    hub, where = source.hub, f"'{source.hub}' at revision '{source.revision}'"
    token = False if isinstance(source, PublicHubSource) else None
    with hub_errors(source, has_token=token is None):
        api = HfApi(endpoint=endpoint(), token=token)
        info = api.model_info(hub, revision=source.revision, files_metadata=True, timeout=TIMEOUT)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        if not all(isinstance(size, int) and size >= 0 for size in sizes.values()):
            raise ValueError("no size of a file")
        if info.sha is None:
            raise Unavailable(f"The hub at {public_endpoint()} names no commit for {where}.", code="hub_unavailable")
        _check_files(where, sizes, bounds)
        try:
            names = [CONFIG, TENSORS, *(name for name in TOKENIZER if 0 < sizes.get(name, 0) <= MOST)]
            size = sum(sizes[name] for name in names)
            with reserve.hold(size):
                snapshot_download(
                    hub, revision=info.sha, allow_patterns=names, local_dir=folder, endpoint=endpoint(),
                    etag_timeout=TIMEOUT, token=token, tqdm_class=bounded_progress(size),
                )  # fmt: skip
        except SurplusBytes:
            raise Unavailable(
                f"{where} came with more bytes than the hub says: try again.", code="bad_download", retry_after=5
            ) from None
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
            f"{where} holds no readable adapter.",
            [f"{name} is missing at the repository's root.{hint}" for name in missing],
            code="unfit_adapter",
        )
    total = sizes[CONFIG] + sizes[TENSORS]
    if total > bounds.adapter_bytes:
        raise TooLarge(f"{where} has {total} bytes, over the limit of {bounds.adapter_bytes}.", param="source.hub")
