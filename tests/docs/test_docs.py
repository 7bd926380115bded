"""Every example of the documentation runs and prints what its page shows."""

import json
import re

import pytest

from tests.docs.blocks import DOCS, ROOT, Example, examples, fences, index_name, pages
from tests.docs.compare import differences, matches
from tests.docs.running import missing, run
from tests.system.serving import Server

EXAMPLES = [example for page in pages() for example in examples(page)]


@pytest.mark.real
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_an_example_prints_what_is_displayed(example: Example, server: Server) -> None:
    if reason := missing(example.language):
        pytest.skip(reason)
    printed = run(example, server.url, server.data)
    answer = example.answer
    if answer is None:
        return
    if answer.info[0] == "text":
        assert matches(answer.text, printed), f"printed:\n{printed}\nshown:\n{answer.text}"
        return
    faults = differences(json.loads(answer.text), json.loads(printed), approx="approx" in answer.info)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_links_lead_somewhere(page: object) -> None:
    """Links to files of this repository, and to headings of its pages."""
    assert isinstance(page, type(DOCS))
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT), f"{page.name}: {target} leads out of the repository"
        if anchor:
            heads = [part for part in fences(file.read_text(encoding="utf-8").splitlines()) if isinstance(part, str)]
            assert anchor in {_anchor(head) for head in heads}, f"{page.name}: {target}"


def _anchor(heading: str) -> str:
    """A heading's anchor as hosts of Markdown make it."""
    text = heading.lstrip("#").strip().lower().replace("`", "")
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    names = [index_name(page) for page in pages() if page.name != "README.md"]
    left_out = [name for name in names if f"({name})" not in index]
    assert left_out == []


def test_every_header_of_ours_is_in_the_index() -> None:
    """Those of answers; the one of a request is told where its preferences are."""
    sent = {
        name
        for file in (ROOT / "runtime").rglob("*.py")
        for name in re.findall(r"X-Roundhouse-\w[\w-]+\w", file.read_text())
    }
    _, _, index = (DOCS / "README.md").read_text(encoding="utf-8").partition("## Headers of every answer")
    assert sorted(name for name in sent - {"X-Roundhouse-Progress"} if f"`{name}`" not in index) == []
