"""Files, commands, options, paths and series that pages name exist. Commands in blocks are test_blocks.py's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from docs.generate import MARKS
from docs.tables.cli import parameters, walk
from docs.tables.metrics import series
from runtime.cli.main import app
from runtime.http.routes import routes
from tests.docs.blocks import ROOT, fences, pages

CLI, MIGRATE = "cli.md", "migrate.md"
"""The command line's own help, and other servers' names, which test_migrate.py reads."""
FILE_PAGES = [*pages(), ROOT / "ARCHITECTURE.md", ROOT / "docs" / "design" / "states.md"]
PAGES = [page for page in FILE_PAGES if page.name not in (CLI, MIGRATE)]
_COMMANDS = dict(walk(typer.main.get_command(app), "roundhouse"))
COMMANDS = {tuple(name.split()[1:]) for name in _COMMANDS}
OPTIONS = {o for command in _COMMANDS.values() for p in parameters(command) for o in (*p.opts, *p.secondary_opts)}
OTHERS = {
    "--gpus",
    "--stop-timeout",
    "--minutes",
    "--shape",
    "--seconds",
    "--budget",
    "--parts",
    "--recipe",
    "--stock",
    "--no-deps",
}
"""Options of Docker, and of this repository's own benchmarks and load tests."""
ROUTES = [(re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)), path, methods) for path, _, methods in routes()]
BASES = ("/v1", "/v1/")
"""What clients are given as their address."""
SERIES = {name for name, _ in series()}
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
_FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)*/[\w*-]+\.[a-z]+\b")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
_SOURCE = re.compile(r"`((?:[\w*-]+/)*[\w*-]+\.(?:py|c))`")
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:([A-Z]+) )?(/(?:v1|v2|api|health)(?:/[^\s?`]*)?)(?:\?\S*)?")


def text(page: str) -> str:
    """Without what is generated and without blocks."""
    page = MARKS.sub("", page)
    lines = page.splitlines()
    for block in [part for part in fences(lines) if not isinstance(part, str)]:
        lines[block.line - 1 : block.end] = [""] * (block.end - block.line + 1)
    return "\n".join(lines)


def unknown(page: str) -> Iterator[str]:
    """What the text names and nothing here has."""
    for span in _SPAN.findall(text(page)):
        if span.startswith("roundhouse ") and not _is_command(span.split()[1:]):
            yield span
        if (found := _PATH.fullmatch(span)) and not _is_path(found[1], found[2]):
            yield span
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span):
            if option not in OPTIONS | OTHERS:
                yield option
    for name in re.findall(r"\broundhouse_[a-z_]*[a-z]\b", page):
        if name not in SERIES and re.sub(r"_(bucket|count|sum)$", "", name) not in SERIES:
            yield name


def _is_command(words: list[str]) -> bool:
    return any(tuple(words[: len(command)]) == command for command in COMMANDS)


def _is_path(method: str | None, path: str) -> bool:
    """'…' or '*' at the end stands for anything."""
    if path.endswith(("…", "*")):
        return any(known.startswith(path[:-1]) for _, known, _ in ROUTES)
    return path in BASES or any(
        pattern.fullmatch(path) and method in (None, *methods) for pattern, _, methods in ROUTES
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    assert sorted(set(unknown(page.read_text(encoding="utf-8")))) == []


def test_what_does_not_exist_is_noticed() -> None:
    page = (
        "`roundhouse fly`, `roundhouse models fly`, `roundhouse models list --json`, `--fly-away`, `--host`, "
        "`/v1/fly`, `PUT /v1/models`, `GET /v1/models`, `/v1/models/{id}/load`, `/v1/organization/…`, `/v1/fx…`, "
        "`roundhouse_flights`, `roundhouse_requests_total`"
    )
    faults = "roundhouse fly, roundhouse models fly, --fly-away, /v1/fly, PUT /v1/models, /v1/fx…, roundhouse_flights"
    assert list(unknown(page)) == faults.split(", ")


def missing(text: str) -> Iterator[str]:
    """Paths of files that do not exist, and bare names in backticks of source files that are nowhere. '*' stands for
    one folder's or file's name."""
    for name in {*_FILE.findall(text), *_SOURCE.findall(text)}:
        if name not in FILES and next(ROOT.glob(name), None) is None:
            yield name


@pytest.mark.parametrize("page", FILE_PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert sorted(missing(page.read_text(encoding="utf-8"))) == []


def test_a_file_that_is_gone_is_noticed() -> None:
    text = "see `runtime/gone.py`, runtime/http/*/endpoints.py, models/gone/x.wav, `link.py`, `gone.py` and https://a/docs/x.py"
    assert sorted(missing(text)) == ["gone.py", "models/gone/x.wav", "runtime/gone.py"]
