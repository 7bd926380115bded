"""Folders on this machine that a client may name as a source."""

import asyncio
import os
from pathlib import Path
from typing import Literal

from registry.base.wording import quoted
from registry.errors import BadRequest, Forbidden, NotFound
from runtime.config.settings import Settings
from runtime.gateway.launch.merged import MERGED
from tenants.caller import Caller, Scope

UPLOAD = {"adapters": " Or upload it.", "models": ""}


def check_scope(caller: Caller, param: str, what: Literal["adapters", "models"]) -> None:
    """Raises Forbidden (insufficient_scope) for a key without the scope for folders."""
    if Scope.PATHS not in caller.scopes:
        instead = "Upload the adapter: that works without it." if what == "adapters" else "Name a hub's repository."
        raise Forbidden(
            f"This key may not name a folder of the server's machine: that needs the scope '{Scope.PATHS}'. {instead}",
            code="insufficient_scope",
            param=param,
        )


async def check_folder(
    path: str, settings: Settings, param: str, what: Literal["adapters", "models"], caller: Caller
) -> None:
    """Raises NotFound unless `path` is a folder below a root, after resolving links.

    The data directory is excluded however it is spelled, since its content belongs to teams. The only exception is
    models that the caller's team has merged there.

    Missing and forbidden folders get the same error, so that callers learn nothing about other folders.
    """
    if path.startswith("~"):
        raise BadRequest(f"Write the whole path in '{param}': '~' would be the server's home, not yours.", param=param)
    if not Path(path).is_absolute():
        raise BadRequest(f"'{param}' must be an absolute path on the server.", param=param)
    if not await asyncio.to_thread(_is_open, path, settings, what, caller):
        raise NotFound(
            f"There is no folder {quoted(path)} below those that {what} may be taken from. "
            "The server's --adapter-roots says which, by default its working directory; its data directory is never "
            f"among them. To take from elsewhere, start it with that folder there, too.{UPLOAD[what]}",
            code="source_not_found",
            param=param,
        )


def _is_open(path: str, settings: Settings, what: Literal["adapters", "models"], caller: Caller) -> bool:
    data = settings.data_dir.resolve()
    try:
        real = Path(path).resolve()
        if not real.is_dir():
            return False
        if what == "models" and _is_within(real, data / MERGED):
            return real != data / MERGED and _may_serve(real, data / MERGED, caller)
        roots = settings.adapter_roots or (Path.cwd(),)
        is_below = any(real.is_relative_to(root.resolve()) for root in roots)
        return is_below and not _is_within(real, data) and not _is_within(data, real)
    except (OSError, ValueError, RuntimeError):  # too long, with a null byte, or a loop of links
        return False


def _may_serve(model: Path, merged: Path, caller: Caller) -> bool:
    """Whether the caller's team merged the model. Models from earlier versions have no team."""
    team, names_team, _ = model.relative_to(merged.resolve()).parts[0].partition("+")
    return Scope.ADMIN in caller.scopes or not names_team or team == caller.team


def _is_within(real: Path, folder: Path) -> bool:
    """Whether a path is the folder or below it. Compares file identities, since spellings may differ."""
    try:
        target = folder.stat()
        return any(os.path.samestat(one.stat(), target) for one in (real, *real.parents))
    except FileNotFoundError:
        return False
