"""Defaults that depend on where the server or a command is called."""

import os
from pathlib import Path
from typing import Any

import pytest

from runtime.config.settings import STARTER, default_data_dir, starter_recipes


def test_a_working_directory_that_this_user_may_not_look_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when root calls a command for a service's user from a folder of root's."""
    stat = os.stat

    def refused(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) == STARTER:
            raise PermissionError(13, "Permission denied", STARTER)
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", refused)
    assert starter_recipes()[0].is_absolute()
    assert default_data_dir() != Path(".data")
