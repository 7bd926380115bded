"""Examples in Markdown: fenced blocks to run, and the answers that the page shows for them.

A block whose info string is `bash run`, `python run` or `js run` is run. If a block `json answer` or `text answer`
follows, with no heading and no other example in between, it must print that (see `tests.docs.compare`). `json answer
approx` allows fractions to differ a little. With `langchain`, `others` or `agents` after `run`, a block runs in that
environment of `scripts/install-clients`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LANGUAGES = ("bash", "python", "js")
ENVIRONMENTS = ("langchain", "others")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block. `line` is the line of the opening fence, counted from 1."""

    info: tuple[str, ...]
    text: str
    line: int
    end: int
    """Line of the closing fence."""


@dataclass(frozen=True, slots=True)
class Example:
    page: Path
    info: tuple[str, ...]
    code: str
    line: int
    answer: Fence | None

    @property
    def language(self) -> str:
        return self.info[0]

    @property
    def name(self) -> str:
        """Page and line, such as 'chat.md:12'."""
        return f"{self.page.name}:{self.line}"


def fences(lines: list[str]) -> Iterator[Fence | str]:
    """Yield fenced blocks, and the headings between them. Raises ValueError for a fence that is not closed."""
    opened: tuple[int, tuple[str, ...]] | None = None
    body: list[str] = []
    for number, line in enumerate(lines, 1):
        if opened is None:
            if line.startswith("```"):
                opened, body = (number, tuple(line[3:].split())), []
            elif line.startswith("#"):
                yield line
        elif line.rstrip() == "```":
            yield Fence(opened[1], "\n".join(body), opened[0], number)
            opened = None
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"the fence of line {opened[0]} is not closed")


def examples(page: Path) -> list[Example]:
    """Return a page's examples in order. Raises ValueError for an answer without an example or an unknown language."""
    all_: list[Example] = []
    open_: Fence | None = None  # an example that may still get its answer

    def close(answer: Fence | None) -> None:
        nonlocal open_
        if open_ is not None:
            all_.append(Example(page, open_.info, open_.text, open_.line, answer))
        open_ = None

    for part in fences(page.read_text(encoding="utf-8").splitlines()):
        if isinstance(part, str):
            close(None)
        elif "run" in part.info[1:]:
            if part.info[0] not in LANGUAGES:
                raise ValueError(f"{page.name}:{part.line}: {part.info[0]} cannot be run")
            close(None)
            open_ = part
        elif "answer" in part.info[1:]:
            if open_ is None or part.info[0] not in ("json", "text"):
                raise ValueError(f"{page.name}:{part.line}: an answer without an example, or not json or text")
            close(part)
    close(None)
    return all_


def pages() -> list[Path]:
    """Return all pages, including those of docs/reference and the README, which has examples too."""
    manual = (*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md")))
    return [*manual, *(page for page in [ROOT / "README.md"] if page.exists())]


def index_name(page: Path) -> str:
    """Return a page's name in links of the index, such as 'chat.md' or 'reference/cli.md'."""
    return page.relative_to(DOCS).as_posix()
