"""What a hub tells of a repository before anything large is fetched: commit, files, and the small ones' content.

Blocks. The endpoint and the token are huggingface_hub's: HF_ENDPOINT (a mirror too) and HF_TOKEN.
"""

from dataclasses import dataclass
from pathlib import Path

from launch.files.listing import READ, SMALL, Listing
from models.sources.repository import Repository, files_of, missing_bytes
from registry.files.hub import TIMEOUT, endpoint, hub_errors
from registry.recipes.source import HubSource

HEADER = 2**20


@dataclass(frozen=True, slots=True)
class RepositoryListing:
    source: HubSource
    """At a commit, whatever branch or tag was asked for."""
    listing: Listing
    to_fetch: int
    """Bytes that are not in the cache yet."""


def look(source: HubSource) -> RepositoryListing:
    """Ask the hub about `source`. Raises as `registry.files.hub.hub_errors`."""
    repository = files_of(source)
    pinned = HubSource(hub=source.hub, revision=repository.commit)
    sizes = {name: file.size for name, file in repository.files.items() if not name.startswith(".")}
    small = [name for name in READ if sizes.get(name, SMALL + 1) <= SMALL]
    folder = _fetch_small(pinned, small)
    listing = Listing(source.hub, sizes, lambda name: _read(pinned, folder, name), source.revision)
    large = {name: file for name, file in repository.files.items() if name not in small}
    return RepositoryListing(pinned, listing, missing_bytes(pinned, Repository(repository.commit, large)))


def _fetch_small(source: HubSource, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    with hub_errors(source):
        return Path(
            snapshot_download(
                source.hub, revision=source.revision, allow_patterns=names or ["config.json"], endpoint=endpoint(),
                etag_timeout=TIMEOUT,
            )
        )  # fmt: skip


def _read(source: HubSource, folder: Path, name: str) -> bytes:
    """A small file; of a large one its first MiB: a GGUF's header."""
    if (folder / name).is_file():
        return (folder / name).read_bytes()
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(source.hub, name, revision=source.revision, endpoint=endpoint())
    with hub_errors(source), get_session().stream(
        "GET", url, headers={**build_hf_headers(), "Range": f"bytes=0-{HEADER - 1}"}, timeout=TIMEOUT,
        follow_redirects=True,
    ) as response:  # fmt: skip
        response.raise_for_status()
        data = b""
        for part in response.iter_bytes():
            data += part
            if len(data) >= HEADER:
                break
        return data[:HEADER]
