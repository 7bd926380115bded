"""What docs/migrate.md says of paths, options and recipe fields is so: those that it names exist here, or do not."""

import re

import pytest
import typer.main

from docs.tables.cli import parameters, walk
from registry.recipes.definition import Recipe
from runtime.cli.main import app
from runtime.http.routes import routes
from tests.docs.blocks import DOCS

_NAMED = re.compile(r"\{[^}]*\}")
PATHS = {_NAMED.sub("{}", path) for path, _, _ in routes()} | {"/docs"}
_PATH = re.compile(r"(?:GET |POST |PUT |DELETE )?(/[\w/{}.-]*)")
_CODE = re.compile(r"`([^`]+)`")
UNCHANGED = ("the same", "[the same]")
RECIPE = ("context_length", "batching.", "memory.", "residency.", "engine.", "aliases", "dtype", "adapters:")


def rows() -> list[tuple[str, str, str]]:
    """Server, what is there, what is here."""
    found, server = [], ""
    for line in (DOCS / "migrate.md").read_text().splitlines():
        if line.startswith("## From "):
            server = line.removeprefix("## From ")
        elif line.startswith("| ") and not line.startswith("| there"):
            there, here = (cell.strip() for cell in line.strip("| ").split(" | ", 1))
            found.append((server, there, here))
    return found


ROWS = rows()
_COMMANDS = dict(walk(typer.main.get_command(app), "roundhouse"))
_OPTIONS = {option for parameter in parameters(_COMMANDS["roundhouse serve"]) for option in parameter.opts}


def paths(cell: str) -> list[str]:
    return [_NAMED.sub("{}", found[1]) for code in _CODE.findall(cell) if (found := _PATH.fullmatch(code))]


@pytest.mark.parametrize(("server", "there", "here"), ROWS, ids=lambda text: text[:40])
def test_paths_are_there_or_not_as_the_page_says(server: str, there: str, here: str) -> None:
    if here.startswith(UNCHANGED):
        assert set(paths(there)) <= PATHS, f"{server}: said to be here"
    if here.startswith("not here"):
        assert not set(paths(there)) & PATHS, f"{server}: said not to be here"
    assert set(paths(here)) <= PATHS | {"/v1"}, server


@pytest.mark.parametrize(("server", "there", "here"), ROWS, ids=lambda text: text[:40])
def test_options_and_fields_that_the_page_names_exist(server: str, there: str, here: str) -> None:
    for code in _CODE.findall(here):
        if code.startswith("--"):
            assert code.split()[0] in _OPTIONS, f"{server}: {code}"
        elif code.startswith("roundhouse "):
            assert code in _COMMANDS, f"{server}: {code}"
        elif code.startswith(RECIPE):
            fields = Recipe.model_fields
            for part in code.partition(":")[0].split("."):
                assert part in fields, f"{server}: {code}"
                fields = getattr(fields[part].annotation, "model_fields", {})


def test_rows_were_read() -> None:
    assert len(ROWS) > 60
    assert sum(bool(paths(there) or paths(here)) for _, there, here in ROWS) > 20
