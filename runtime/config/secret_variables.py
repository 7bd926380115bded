"""Environment variables that engines do not get: keys of providers, tokens, passwords, and those of Ray.

Slots inherit the environment of the main process, so it gives these up before the first slot starts. The API process,
which calls providers and receives sign-ins, is a fork and gets them back.
"""

import os
from collections.abc import Iterable

_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_FOR_ENGINES = frozenset(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "NCCL_IB_PKEY"))
"""Flags of a recipe may name files of a hub that the engine itself fetches, such as a draft model. The last two are no
secrets: a switch that keeps the hub's token from requests, and NCCL's key of an InfiniBand partition."""
_taken = dict[str, str]()


def take_secrets(named: Iterable[str] = ()) -> None:
    """Remove secrets from the environment of this process. named: variables that are secret whatever their names."""
    by_name = {name for name in os.environ if name.upper().endswith(_ENDINGS) or name.startswith("RAY_")}
    for name in (by_name | set(named)) - _FOR_ENGINES:
        value = os.environ.pop(name, None)
        if value is not None:
            _taken[name] = value


def return_secrets() -> None:
    """Put back what `take_secrets` has removed, in this process or the one that it is a fork of."""
    os.environ.update(_taken)
    _taken.clear()
