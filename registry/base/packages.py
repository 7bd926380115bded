"""Locate our packages, so that a child process imports them and not a user's."""

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]


def with_our_packages(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds our packages first, and no user's folder.

    The names of our packages are common words: a `models/` where the server was started must never be imported.
    """
    others = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PACKAGES)]
    return {**env, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others])}
