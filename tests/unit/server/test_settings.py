"""Defaults that depend on the working directory."""

import os
from pathlib import Path
from typing import Any

import pytest

from runtime.config.settings import STARTER, default_data_dir, starter_recipes


def test_defaults_work_in_a_working_directory_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, root runs a command as a service's user from a folder of root."""
    stat = os.stat

    def refused(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) == STARTER:
            raise PermissionError(13, "Permission denied", STARTER)
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", refused)
    assert starter_recipes()[0].is_absolute()
    assert default_data_dir() != Path(".data")
