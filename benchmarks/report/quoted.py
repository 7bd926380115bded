"""Figures that the documentation quotes, between markers that say where they come from.

    <!-- bench:FILE/gateway_tax -->                       the table of a benchmark, with its environment above it
    ...
    <!-- /bench -->
    <!-- bench:FILE/gateway_tax/c1.ttft_p50_added -->0.42<!-- /bench -->     one figure, as the tables write it

FILE is a results file's name without '.json'. `python -m benchmarks.report.quoted` writes them anew; a test compares.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import results
from benchmarks.report.environment import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
_QUOTE = re.compile(r"<!-- bench:([^<>]+?) -->(.*?)<!-- /bench -->", re.DOTALL)
_MARKER = re.compile(r"<!-- /?bench\b")


class NotThere(ValueError):
    """A marker names a file, benchmark or figure that does not exist, or is not closed."""


def shown(name: str, held: Mapping[str, Any]) -> str:
    """What must stand between the markers. Raises NotThere."""
    file, benchmark, *figure = name.split("/")
    try:
        section = held[file]["benchmarks"][benchmark]
        if not figure:
            return "\n".join(["", *results.environment_lines(section), "", results.table(section), ""])
        return results.number(section["figures"][figure[0]]["value"])
    except KeyError as missing:
        raise NotThere(f"bench:{name}: no {missing} in the results files") from None


def fill(text: str, held: Mapping[str, Any]) -> str:
    """The page with all its quotes as the results files have them. Raises NotThere."""
    filled, count = _QUOTE.subn(lambda quote: f"<!-- bench:{quote[1]} -->{shown(quote[1], held)}<!-- /bench -->", text)
    if len(_MARKER.findall(text)) != 2 * count:
        raise NotThere("a bench marker is not closed")
    return filled


def main(pages: tuple[Path, ...] = PAGES) -> None:
    """Write all quotes anew."""
    held = results.load_all()
    for page in pages:
        if page.exists():
            page.write_text(fill(page.read_text(), held))


if __name__ == "__main__":
    main()
