"""Every block of commands or code is run by test_docs.py, or listed here with the reason why not.

Commands that are not run are at least parsed: `make` must have the target, `roundhouse` the command with its arguments
and options.
"""

import itertools
import re
import shlex
from typing import Any

import click
import pytest
import typer.main

from runtime.cli.main import app
from tests.docs.blocks import LANGUAGES, ROOT, Fence, fences, pages

SHELL = ("bash", "sh", "shell", "console", "zsh")
NOT_RUN = {
    ("README.md", "make serve"): "starts the server that all other blocks ask, and all tests",
    ("README.md", ".venv-installer/bin/uv"): "fetches a package of 89 MiB from a registry",
    ("models.md", ".venv-installer/bin/uv"): "fetches packages of 157 MiB, and starts another server",
    ("README.md", "git clone"): "tests/docs/test_newcomer.py follows it",
    ("first-hour.md", "git clone"): "the same steps as README's",
    ("agents.md", "export ANTHROPIC_BASE_URL"): "settings of Claude Code; tests/system/agents runs it with them",
    ("clients.md", "make install-test"): "runs the page's own blocks",
    ("deploy.md", "apt install git"): "needs root and systemd, and changes the machine",
    ("deploy.md", "runuser"): "goes on from the block before",
    ("deploy.md", "docker"): "needs Docker, and fetches gigabytes",
    ("models.md", "roundhouse models add ./support-merged"): "names a folder and a repository of the reader's own",
    ("models.md", "roundhouse models edit mine"): "goes on from the block before",
    ("install.md", "make serve"): "starts the server that all other blocks ask",
    ("monitor.md", "OTEL_EXPORTER"): "needs a receiver of traces; tests/system has one",
    ("install.md", "make serve PORT=9000"): "starts another server on a port that may be taken",
    ("teams.md", "roundhouse teams create"): "closes the server that all other blocks ask",
    ("teams.md", "roundhouse usage report"): "writes a file, and shows a key of the reader's own",
    ("teams.md", "curl -s"): "shows a key, and there is none on the server that all other blocks ask",
    ("secure.md", "roundhouse teams create"): "tests/system/console/test_sign_in.py runs it",
    ("secure.md", "export ROUNDHOUSE_API_KEY"): "tests/system/console/test_sign_in.py runs it",
    ("sharing.md", "roundhouse teams create"): "closes the server that all other blocks ask",
    ("sharing.md", "roundhouse keys create"): "shows keys, and the teams are a reader's own",
    ("sharing.md", "roundhouse adapters add"): "names a folder of the reader's own",
    ("limits.md", "roundhouse limits set"): "names a team and a key of the reader's own",
    ("limits.md", "roundhouse limits simulate"): "names a team of the reader's own",
    ("callbacks.md", "batch = client.batches.create("): "calls a server of the reader's own",
    ("callbacks.md", "from openai import OpenAI"): "a server calls it",
    ("callbacks.md", "webhook = client.webhooks.create("): "calls a server of the reader's own",
    ("costs.md", "curl -s"): "shows a key and a request of the reader's own",
    ("costs.md", "roundhouse usage prune"): "would delete rows of the server that all other blocks ask",
    ("organization.md", "from openai import OpenAI"): "needs an admin key; tests/unit/http/tenants does all of it",
    ("routing.md", "roundhouse routers add"): "names files of the reader's own",
    ("fleet.md", "export ROUNDHOUSE_DATABASE"): "starts several servers; tests/system/fleet does",
    ("fleet-ray.md", ".venv-installer/bin/uv"): "fetches a package; tests/faults/fleet/test_ray.py needs it",
    ("fleet-key.md", "openssl rand"): "starts a server of a fleet; tests/unit/http/hops/test_key.py does",
    ("fleet.md", "roundhouse fleet import"): "needs a PostgreSQL; tests/unit/cli/fleet does",
    ("kubernetes.md", "roundhouse fleet ca init"): "needs a cluster; tests/deploy makes certificates",
    ("kubernetes.md", "kubectl -n models create secret tls"): "needs a cluster",
    ("kubernetes.md", "export ROUNDHOUSE_DATABASE"): "needs a cluster and a database of the reader's own",
    ("performance.md", "make bench"): "takes more than an hour",
}
"""The reason why a block is not run, by page and beginning of the block."""
EXAMPLES = "cli.md"
"""The page whose blocks without a language come from the commands' help, with a reader's own names."""
COMMAND: click.Command = typer.main.get_command(app)
BLOCKS = [(page, part) for page in pages() for part in fences(page.read_text().splitlines()) if isinstance(part, Fence)]


def test_each_block_is_run_or_says_why_not() -> None:
    left = set(NOT_RUN)
    unknown = []
    for page, block in BLOCKS:
        if not block.info or block.info[0] not in {*SHELL, *LANGUAGES, "py", "javascript"} or "run" in block.info:
            continue
        reasons = [key for key in NOT_RUN if key[0] == page.name and block.text.startswith(key[1])]
        if not reasons:
            unknown.append(f"{page.name}:{block.line}: {block.text.splitlines()[0]}")
        left.difference_update(reasons)
    assert unknown == [], "mark it with 'run', or give the reason in NOT_RUN"
    assert left == set(), "these no longer exist, or they are run"


def test_only_generated_examples_have_no_language() -> None:
    assert [f"{page.name}:{block.line}" for page, block in BLOCKS if not block.info and page.name != EXAMPLES] == []


def written(program: str) -> list[Any]:
    """Return all calls of a program in blocks that are not run, and in the help's examples."""
    calls = []
    for page, block in BLOCKS:
        if "run" in block.info or (block.info and block.info[0] not in SHELL):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            for is_end, call in itertools.groupby(words, lambda word: word in ("|", "&&", ";")):
                called = [word for word in call if word != "watch"]
                is_usage = any(word.strip("[].").isupper() for word in called)
                if not is_end and not is_usage and called and called[0].endswith(program):
                    calls.append(pytest.param(called[1:], id=f"{page.name}:{block.line} {' '.join(called)}"))
    return calls


@pytest.mark.parametrize("words", written("make"))
def test_make_has_the_target(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", written("roundhouse"))
def test_roundhouse_has_the_command(words: list[str]) -> None:
    """Parse arguments and options without running the command."""
    command, context, name, rest = COMMAND, None, "roundhouse", list(words)
    while True:
        try:
            context = command.make_context(name, rest, parent=context)
        except click.BadParameter as wrong:
            if "does not exist" in wrong.message:  # a file of the reader's own
                return
            raise
        if not isinstance(command, click.Group):
            return
        subcommand, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None, f"there is no {words}"
        command, name = inner, str(subcommand)
