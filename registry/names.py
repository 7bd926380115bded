"""Patterns for names. A name is not a path: no leading dot, and only model ids may hold a slash."""

import re
from typing import Annotated

from pydantic import StringConstraints

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MODEL = "[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}"
# \Z instead of $, which in Python also matches before a final newline. (Pydantic's regex engine has only a strict $.)
ADAPTER = ALIAS = re.compile(rf"^{_NAME}\Z")
MODEL = re.compile(rf"^{_MODEL}\Z")
"""A model id may contain ':' (`gpt-oss:120b`). Resolution tries the exact id before it splits `base:adapter`."""
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}\Z")
DIGEST_PREFIX = re.compile(r"^sha256:[0-9a-f]{12,64}\Z")
"""A digest as a client may write it after '@': at least the first 12 hex digits."""
VERSION = re.compile(r"^v[1-9][0-9]{0,8}\Z")
DEFAULT_TEAM = "default"
"""The team that owns everything else: requests to servers without keys, and adapters of recipes."""
NAME_RULE = "write 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
MODEL_RULE = "write 1 to 128 letters, digits, '.', '_', '-', '/' or ':', and begin with a letter or digit"
"""MODEL in words, for messages; NAME_RULE is the same for ADAPTER and ALIAS."""

RecipeId = Annotated[str, StringConstraints(pattern=rf"^{_MODEL}(@[1-9][0-9]{{0,8}})?$")]
"""A model's id in recipe files. A former version that is still served has the id `id@version`."""
NAME_PATTERN = f"^{_NAME}$"
AdapterName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
ModelId = Annotated[str, StringConstraints(pattern=f"^{_MODEL}$")]


def model_of(name: str) -> str:
    """The model in a name whose version is spelled out, such as `gpt:7b@3` or, of an adapter, `gpt:7b:upper@v1`.

    Other names with a ':' count as an adapter's, which may not be registered yet.
    """
    spelled, at, version = name.rpartition("@")
    if at and version.isdigit():
        return spelled
    adapter = spelled if at else name
    return adapter.rpartition(":")[0] or adapter
