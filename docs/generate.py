"""Write the generated tables into the pages of the documentation.

    python -m docs.generate [--check]

The table NAME replaces what a page has between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. With --check
nothing is written, and the exit code is 1 if a page is out of date.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.tables import (
    adapters,
    api,
    bounds,
    cli,
    errors,
    figures,
    flags,
    gpu,
    hints,
    metrics,
    recipe,
    schemas,
    translation,
)

DOCS = Path(__file__).parent
TABLES: dict[str, Callable[[], str]] = {
    "forms": adapters.forms,
    "paths": api.paths,
    "scopes": api.scopes,
    "recipe": recipe.fields,
    "provider": recipe.provider,
    "flags": flags.own,
    "vllm": flags.vllm,
    "settings": cli.settings,
    "bounds": bounds.bounds,
    "metrics": metrics.metrics,
    "errors": errors.classes,
    "codes": errors.codes,
    "commands": cli.commands,
    "chatfields": translation.chat,
    "messagefields": translation.messages,
    "responsefields": translation.responses,
    "withouteffect": hints.without_effect,
    "silent": hints.silent,
    "hosted": hints.hosted,
    "schemas": schemas.enforced,
    "refusedkeywords": schemas.refused,
    "figures": figures.models,
    "platform": figures.platform,
    "headlines": figures.short,
    "fleet": figures.fleet,
    "gpu": gpu.gpu,
}
MARKS = re.compile(r"(<!-- generated: (?P<name>[a-z]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


def rendered(text: str) -> str:
    """Return a page with its tables up to date. Raises KeyError for a table that does not exist."""
    return MARKS.sub(lambda mark: f"{mark[1]}{TABLES[mark['name']]()}\n{mark[3]}", text)


def names(text: str) -> list[str]:
    """Return the names of a page's tables."""
    return [mark["name"] for mark in MARKS.finditer(text)]


def pages() -> list[Path]:
    """Return all pages, including those of docs/reference and the repository's README if it exists."""
    return [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md")), *DOCS.parent.glob("README.md")]


def outdated() -> dict[Path, str]:
    """Return the pages that are out of date, with their new text."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    return {page: new for page, text in texts.items() if (new := rendered(text)) != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args().check
    changed = outdated()
    for page, text in changed.items():
        name = page.relative_to(DOCS.parent)
        print(f"{name} is out of date; run: python -m docs.generate" if check else f"wrote {name}")
        if not check:
            page.write_text(text, encoding="utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
