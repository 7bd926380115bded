"""docs/clients.md shows each client in a runnable example, and names each once in its table of addresses."""

import re

from tests.docs.blocks import DOCS, examples, fences

PAGE = DOCS / "clients.md"
CLIENTS = {
    "curl": "curl ", "OpenAI": "from openai import", "Anthropic": "from anthropic import", "Cohere": "import cohere",
    "Ollama": "import ollama", "Hugging Face": "from huggingface_hub import",
    "LangChain": "from langchain_openai import", "LlamaIndex": "from llama_index", "LiteLLM": "import litellm",
    "Instructor": "import instructor",
    "Pydantic AI": "from pydantic_ai import", "OpenAI Agents": "from agents import", "llm": "llm -m",
    "JavaScript": 'from "ai"', "LoRAX": "from lorax import",
    "Jina and Text Embeddings Inference": "/v1/rerank",
}  # fmt: skip


def test_each_client_has_lines_that_run_and_an_answer() -> None:
    heads = [part.lstrip("# ") for part in fences(PAGE.read_text().splitlines()) if isinstance(part, str)]
    found = examples(PAGE)
    assert heads[1:] == list(CLIENTS)
    assert len(found) == len(CLIENTS)
    for example, uses in zip(found, CLIENTS.values(), strict=True):
        assert uses in example.code
        assert example.answer is not None
    assert "cohere/starter-rerank" in next(one.code for one in found if "litellm" in one.code)


def test_the_table_names_the_address_that_the_lines_use() -> None:
    text = PAGE.read_text()
    rows = {name: row.split("|")[2].strip("` ") for row in text.splitlines() if row.startswith("| ")
            for name in CLIENTS if re.search(rf"\b{name}\b", row)}  # fmt: skip
    for example, name in zip(examples(PAGE), CLIENTS, strict=True):
        if name in rows and name not in ("curl", "LiteLLM", "Hugging Face"):
            address = re.search(r"http://127\.0\.0\.1:8000(/v1)?", example.code)
            assert address is not None
            assert address[0] == rows[name], name
