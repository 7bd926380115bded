"""Bounds of the guard that come from the settings and from what the system allows."""

import resource
from pathlib import Path
from typing import Any

import pytest

from runtime.http.guard.layers import FILES, SIGN_IN, SIGN_IN_BYTES, body_layer, connection_bounds, raise_file_limit
from tests.unit.http.fakes import GivenSettings

NO_LIMIT = resource.RLIM_INFINITY


def settings(folder: Path, **more: Any) -> GivenSettings:
    return GivenSettings(recipes=(), data_dir=folder / "data", run_dir=folder / "run", **more)


@pytest.mark.parametrize(
    ("files", "most", "per_address"),
    [(1_000, 500, 300), (100, 50, 50), (100_000, 600, 300), (NO_LIMIT, 600, 300)],
)
def test_idle_connections_get_at_most_half_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, most: int, per_address: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, NO_LIMIT))
    idle = connection_bounds(settings(tmp_path, max_idle=600), 300).idle
    assert (idle._most, idle._per_address) == (most, per_address)


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, (4_096, 4_096)),
        (1_024, 2 * FILES, (FILES, 2 * FILES)),
        (1_024, NO_LIMIT, (FILES, NO_LIMIT)),
        (4_096, 4_096, None),
        (2 * FILES, NO_LIMIT, None),
        (NO_LIMIT, NO_LIMIT, None),
    ],
)
def test_the_limit_of_files_is_raised_as_far_as_allowed_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: tuple[int, int] | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    raise_file_limit()
    assert limits == ([] if raised is None else [raised])


def test_fitted_routers_may_be_larger_than_other_bodies_and_sign_ins_are_small(tmp_path: Path) -> None:
    _, options = body_layer(settings(tmp_path, max_json=1_000))
    most = options["most"]
    assert most("/v1/chat/completions") == most("/v1/routers/a/fitted") == most("/v1/routers/a/fitted/b/c") == 1_000
    assert most("/v1/routers/a/fitted/b") > 1_000
    assert most(SIGN_IN) == SIGN_IN_BYTES
    _, options = body_layer(settings(tmp_path, max_json=2**40))
    assert options["most"]("/v1/routers/a/fitted/b") == 2**40
