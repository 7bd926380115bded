"""Write the generated tables of the documentation between their marks.

    python -m docs.generate [--check]

A page holds `<!-- generated: NAME -->` and `<!-- end of NAME -->`; what is between them is replaced by the table of
that name. With --check nothing is written: the exit code is 1 when a page is not up to date.
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
    "removed": cli.removed,
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
    "figures": figures.every,
    "headlines": figures.short,
    "fleet": figures.fleet,
    "gpu": gpu.gpu,
}
MARKS = re.compile(r"(<!-- generated: (?P<name>[a-z]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with its tables as the code has them now. Raises KeyError for a table that does not exist."""
    return MARKS.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", text)


def names(text: str) -> list[str]:
    """The tables that a page holds."""
    return [found["name"] for found in MARKS.finditer(text)]


def pages() -> list[Path]:
    """All pages, those of docs/reference, and the README of the repository where there is one."""
    return [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md")), *DOCS.parent.glob("README.md")]


def outdated() -> dict[Path, str]:
    """Pages that are not up to date, with what they should hold."""
    found = {page: page.read_text(encoding="utf-8") for page in pages()}
    return {page: new for page, text in found.items() if (new := rendered(text)) != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is out of date")
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
