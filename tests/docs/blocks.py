"""Examples in Markdown: fenced blocks that are run, and the answers that the page shows for them.

A block whose info string is `bash run`, `python run` or `js run` is run. A fenced block `json answer` or `text answer`
behind it, with no heading and no other example in between, is what it must print (see `tests.docs.compare`).
`json answer approx` allows fractions to differ a little. What has `langchain`, `others` or `agents` behind `run`
runs in that environment of `scripts/install-clients`.
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
    """One fenced block. `line` counts from 1 and is the line of the opening fence."""

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
        """'chat.md:12'."""
        return f"{self.page.name}:{self.line}"


def fences(lines: list[str]) -> Iterator[Fence | str]:
    """Fenced blocks, and the headings between them. Raises ValueError for a fence that is not closed."""
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
    """The examples of one page in order. Raises ValueError for an answer without an example, or an unknown language."""
    found: list[Example] = []
    open_: Fence | None = None  # an example that may still get its answer

    def close(answer: Fence | None) -> None:
        nonlocal open_
        if open_ is not None:
            found.append(Example(page, open_.info, open_.text, open_.line, answer))
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
    return found


def pages() -> list[Path]:
    """All pages, those of docs/reference, and the README, whose first screen has examples too."""
    found = (*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md")))
    return [*found, *(page for page in [ROOT / "README.md"] if page.exists())]


def index_name(page: Path) -> str:
    """A page as the index of the documentation links to it: 'chat.md', 'reference/cli.md'."""
    return page.relative_to(DOCS).as_posix()
