"""Folders as people have them, on a real server: accepted ones answer as their own library does.

The long form of tests/contract/test_people_folders.py, which takes a minute or two: PEOPLE_FOLDERS=1 pytest FILE.
Set the variable to a folder to test that folder's subfolders instead of the generated ones of the same name.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from runtime.cli.main import app
from tests.contract import people_folders as made
from tests.contract.people_folders import ADAPTER, CHAT, TAKEN_ADAPTERS, TAKEN_CHATS, TAKEN_MODELS, Maker
from tests.system.serving import STARTER, Server

FOLDERS = os.environ.get("PEOPLE_FOLDERS", "")
pytestmark = [pytest.mark.real, pytest.mark.skipif(not FOLDERS, reason="long form: set PEOPLE_FOLDERS=1")]
PROMPTS = ("hello world", "what is an adapter", "the quick brown fox", "Zug, naïve café")
TEXTS = ["steam", "Zug, 列車: naïve café!", "the quick brown fox jumps over the lazy dog " * 5]
TOKENS = 24
ids = {"ids": lambda value: value.__name__ if callable(value) else None}
REFUSED: tuple[tuple[Maker, str], ...] = (
    (made.tie_key_missing, '"tie_word_embeddings": true'),
    (made.no_tokenizer, "copy the tokenizer's files"),
    (made.peft_names, "merge_and_unload"),
    (made.names_of_a_wrapper, "rename the weights without it"),
    (made.more_tokens_than_rows, "resize_token_embeddings"),
    (made.named_templates, "name one 'default'"),
    (made.git_lfs_pointer, "git lfs pull"),
    (made.adapter_beside, "adapters add"),
    (made.st_dense_missing, "whose folder is missing"),
)
"""Makers of models that cannot be served, and the remedy."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("people")
    recipe = yaml.safe_load((STARTER / "starter-chat.yaml").read_text()) | {"adapters": [], "dtype": "float32"}
    (home / "starter-chat.yaml").write_text(yaml.safe_dump(recipe))
    with Server(home / "data", [home / "starter-chat.yaml"], "--slots", "4") as server:
        yield server.wait_ready()


def folder_of(maker: Maker, folder: Path) -> Path:
    """Return the maker's folder, or the one of that name in PEOPLE_FOLDERS."""
    other = Path(FOLDERS) / maker.__name__
    if not other.is_dir():
        return maker(folder)
    shutil.copytree(other, folder)
    archives = sorted(folder.glob("*.zip"))
    return archives[0] if archives else folder


def run(server: Server, *words: object) -> Result:
    return CliRunner().invoke(app, ["--url", server.url, *map(str, words)])


def output_of(result: Result) -> str:
    """Return the output with each run of white space as one blank."""
    return re.sub(r"\s+", " ", result.output)


def answers(server: Server, model: str) -> list[str]:
    texts = []
    for prompt in PROMPTS:
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": TOKENS}
        response = server.http.post("/v1/chat/completions", json={"model": model, **body})
        assert response.status_code == 200, f"{response.text}\n{server.tail()}"
        texts.append(response.json()["choices"][0]["message"]["content"])
    return texts


def own_answers(network: Any, tokenizer: Any, template: str | None = None) -> list[str]:
    """Return greedy answers of transformers or peft."""
    import torch

    texts = []
    for prompt in PROMPTS:
        message = [{"role": "user", "content": prompt}]
        tokens = tokenizer.apply_chat_template(
            message, chat_template=template, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            output = network.generate(**tokens, max_new_tokens=TOKENS, do_sample=False)
        texts.append(tokenizer.decode(output[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """peft's answers with the adapter that is in each of the folders."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(str(CHAT), dtype=torch.float32)
    return own_answers(PeftModel.from_pretrained(base, str(ADAPTER)), AutoTokenizer.from_pretrained(str(CHAT)))


@pytest.mark.parametrize("maker", TAKEN_ADAPTERS, **ids)
def test_an_adapter_answers_as_in_peft(maker: Maker, server: Server, expected: list[str], tmp_path: Path) -> None:
    name = maker.__name__
    result = run(server, "adapters", "add", name, folder_of(maker, tmp_path / "it"), "--base", "starter-chat")
    assert result.exit_code == 0, result.output
    assert answers(server, name) == expected != answers(server, "starter-chat")


def test_an_adapter_with_other_tokens_is_refused_with_their_names(server: Server, tmp_path: Path) -> None:
    folder = folder_of(made.own_template, tmp_path / "it")
    result = run(server, "adapters", "add", "own", folder, "--base", "starter-chat")
    assert result.exit_code == 1
    assert "2 tokens that the base lacks ('<|im_end|>', '<|im_start|>')" in output_of(result)


@pytest.mark.parametrize("maker", TAKEN_CHATS, **ids)
def test_a_chat_model_answers_as_in_transformers(maker: Maker, server: Server, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, TokenizersBackend

    folder, name = folder_of(maker, tmp_path / "it"), maker.__name__
    result = run(server, "models", "add", folder, "--id", name, "--set", "dtype=float32", "--yes")
    assert result.exit_code == 0, result.output
    network = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    template = (CHAT / "chat_template.jinja").read_text()
    assert answers(server, name) == own_answers(network, TokenizersBackend.from_pretrained(str(folder)), template)


@pytest.mark.parametrize("maker", TAKEN_MODELS, **ids)
def test_an_embedding_model_returns_its_librarys_vectors(maker: Maker, server: Server, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder, name = folder_of(maker, tmp_path / "it"), maker.__name__
    result = run(server, "models", "add", folder, "--id", name, "--set", "dtype=float32", "--yes")
    assert result.exit_code == 0, result.output
    sizes = (16, 32, 64) if maker is made.matryoshka_config else ()
    recipe = server.http.get(f"/v1/models/{name}/recipe").text
    assert ("matryoshka_dimensions" in recipe) is bool(sizes)
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for size in (None, *sizes):
        response = server.http.post("/v1/embeddings", json={"model": name, "input": TEXTS, "dimensions": size})
        assert response.status_code == 200, response.text
        vectors = [one["embedding"] for one in response.json()["data"]]
        own = library.encode(TEXTS, truncate_dim=size, normalize_embeddings=True, show_progress_bar=False)
        np.testing.assert_allclose(vectors, own, atol=2e-4)


@pytest.mark.parametrize(("maker", "remedy"), REFUSED, **ids)
def test_a_folder_that_cannot_be_served_is_refused_with_the_remedy(
    maker: Callable[[Path], Path], remedy: str, server: Server, tmp_path: Path
) -> None:
    folder = folder_of(maker, tmp_path / "it")
    checked = CliRunner().invoke(app, ["models", "check", str(folder)])
    added = run(server, "models", "add", folder, "--id", maker.__name__, "--yes")
    assert (checked.exit_code, added.exit_code) == (1, 1), f"{checked.output}\n{added.output}"
    assert remedy in output_of(checked)
    assert remedy in output_of(added)
    assert server.http.get(f"/v1/models/{maker.__name__}").status_code == 404
