"""Runs the examples of the documentation, and prints or replaces the answers that differ.

    python -m tests.docs.fill [--url http://127.0.0.1:8000] [--write] [PAGE ...]

Without --url it starts its own server. With --write the answers in the pages are replaced, with only the keys that were
shown before and with the same "...". Read the difference before you commit it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import DOCS, ROOT, Example, examples, pages
from tests.docs.compare import ANY, differences, matches, merged
from tests.docs.running import Failed, missing, run
from tests.system.serving import Server

WIDTH = 110


def written(value: Any, indent: str = "") -> str:
    """Format JSON, with everything that fits on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {written(item, deeper)}" for key, item in value.items()]
    else:
        parts = [written(item, deeper) for item in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    inside = f",\n{deeper}".join(parts)
    return f"{left}\n{deeper}{inside}\n{indent}{right}"


def rounded(value: Any) -> Any:
    """Round fractions to four digits for readers."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def true_answer(example: Example, url: str, data: Path | None) -> str | None:
    """Return the correct text of the answer's block, or None if it is already correct. Raises Failed."""
    printed = run(example, url, data)
    answer = example.answer
    if answer is None:
        return None
    if answer.info[0] == "text":
        return None if matches(answer.text, printed) else printed.rstrip("\n")
    displayed, got, approx = json.loads(answer.text or f'"{ANY}"'), json.loads(printed), "approx" in answer.info
    if answer.text and not differences(displayed, got, approx=approx):
        return None
    filled = merged(displayed, got) if answer.text else got
    return written(rounded(filled) if approx else filled)


def fill(page: Path, url: str, write: bool, data: Path | None = None) -> int:
    """Check, and with `write` correct, a page; returns the number of wrong answers and failed examples."""
    wrong: list[tuple[Example, str]] = []
    failed = skipped = 0
    found = examples(page)
    for example in found:
        if reason := missing(example.language):
            skipped += 1
            print(f"{example.name}: skipped, {reason}")
            continue
        try:
            text = true_answer(example, url, data)
        except pytest.skip.Exception as why:  # an environment of other clients could not be made
            skipped += 1
            print(f"{example.name}: skipped, {why}")
            continue
        except (Failed, json.JSONDecodeError) as error:
            failed += 1
            print(f"{example.name}: {error}")
            continue
        if text is not None:
            wrong.append((example, text))
            print(f"{example.name}:\n{text}\n")
    if write:
        lines = page.read_text(encoding="utf-8").splitlines()
        for example, text in reversed(wrong):
            assert example.answer is not None
            lines[example.answer.line : example.answer.end - 1] = text.splitlines()
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    right = len(found) - len(wrong) - failed - skipped
    print(f"{page.name}: {right} of {len(found)} examples do what the page shows")
    return len(wrong) + failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("pages", nargs="*", help="names such as chat.md; all by default")
    options = parser.parse_args()
    expected = [DOCS / name if (DOCS / name).exists() else ROOT / name for name in options.pages] or pages()
    if options.url:
        return min(1, sum(fill(page, options.url, options.write) for page in expected))
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), prewarm=True)
        try:
            server.wait_ready()
            return min(1, sum(fill(page, server.url, options.write, server.data) for page in expected))
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
