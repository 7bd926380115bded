"""What a hub's repository left in huggingface_hub's cache, taken away."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from models.sources.repository import blobs_of, cache_folder
from registry.recipes.source import HubSource


def purge(sources: Collection[HubSource], retained: Collection[HubSource] = (), in_use: Collection[Path] = ()) -> int:
    """Delete the files of these repositories at these revisions, and what had come of them; returns their bytes.

    Files that another revision in the cache shares stay. Blocks.

    Args:
        kept: whose files stay, whatever the revision is called: a branch and its commit are the same files.
        read: folders that engines read, which stay too: a branch may have moved on since.
    """
    from huggingface_hub import CachedRevisionInfo, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    if not sources:
        return 0
    try:
        cache = scan_cache_dir(cache_folder())
    except CacheNotFound:
        return 0

    def commits(selected: Collection[HubSource]) -> set[str]:
        return {
            revision.commit_hash
            for repository in cache.repos
            for revision in repository.revisions
            if any(
                one.hub == repository.repo_id and one.revision in (revision.commit_hash, *revision.refs)
                for one in selected
            )
        }

    expired, hubs, freed = (
        commits(sources) - commits(retained) - {folder.name for folder in in_use},
        {s.hub for s in retained},
        0,
    )
    for source in sources:
        for part in blobs_of(source).glob("*.part") if source.hub not in hubs else ():
            freed += part.stat().st_size
            part.unlink(missing_ok=True)
    # A repository of which no revision is left is deleted whole, with what is on its way for a kept one: one stays.
    nothing = CachedRevisionInfo("", cache_folder(), 0, frozenset(), frozenset(), 0)
    staying = {one: replace(one, revisions=one.revisions | {nothing}) for one in cache.repos if one.repo_id in hubs}
    cache = replace(cache, repos=frozenset(staying.get(one, one) for one in cache.repos))
    strategy = cache.delete_revisions(*expired)
    strategy.execute()
    return freed + strategy.expected_freed_size
