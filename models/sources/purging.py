"""What a hub's repository left in huggingface_hub's cache, taken away."""

from collections.abc import Iterable

from models.sources.repository import blobs_of, cache_folder
from registry.recipes.source import HubSource


def purge(sources: Iterable[HubSource]) -> int:
    """Delete the files of these repositories at these revisions, and what had come of them; returns their bytes.

    Files that another revision in the cache shares stay. Blocks.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    wanted, freed = set(sources), 0
    if not wanted:
        return 0
    try:
        found = scan_cache_dir(cache_folder())
    except CacheNotFound:
        return 0
    commits = [
        revision.commit_hash
        for repository in found.repos
        for revision in repository.revisions
        if any(
            one.hub == repository.repo_id and one.revision in (revision.commit_hash, *revision.refs) for one in wanted
        )
    ]
    strategy = found.delete_revisions(*commits)
    freed += strategy.expected_freed_size
    strategy.execute()
    for source in wanted:
        for part in blobs_of(source).glob("*.part"):
            freed += part.stat().st_size
            part.unlink(missing_ok=True)
    return freed
