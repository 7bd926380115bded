"""A model whose only tokenizer is Mistral's own (tekken.json), as with Mistral Small 3.2 and Devstral."""

import json
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.protocol.instruct.messages import UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from launch.files.listing import list_folder
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest
from models.chat.engine import VllmEngine
from models.messages import Chunk, HttpCall
from registry.recipes.fields import PathSource
from tests.contract.chat import fixtures

pytestmark = pytest.mark.real
ENDINGS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def write_tekken(folder: Path, words: int = 1000) -> None:
    """Write a vocabulary of the first words of the package's own file."""
    whole = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    reported = json.loads(whole.read_text())
    special = reported["config"]["default_num_special_tokens"]
    reported["vocab"] = reported["vocab"][:words]
    reported["config"] |= {"default_vocab_size": words + special}
    (folder / "tekken.json").write_text(json.dumps(reported))


async def test_messages_become_the_tokens_of_mistrals_own_tokenizer(tmp_path: Path) -> None:
    base = fixtures.write_base(tmp_path / "Mistral-Small", vocabulary=2000)
    for name in ENDINGS:
        (base / name).unlink(missing_ok=True)
    write_tekken(base)
    machine = Machine("cpu", 4 << 30)
    recipe = propose(list_folder(base), PathSource(path=str(base)), ModelRequest("tiny"), machine).recipe
    engine = VllmEngine()
    await engine.load(recipe, base, "cpu", lambda progress: None)
    try:
        body: dict[str, Any] = {"model": recipe.id, "messages": [{"role": "user", "content": "Where is it?"}]}
        sent = json.dumps(body | {"max_tokens": 4, "return_token_ids": True}).encode()
        call = engine.call(HttpCall(path="/v1/chat/completions", body=sent, served=recipe.id, display_name=recipe.id))
        answer = json.loads(b"".join([event.data async for event in call if isinstance(event, Chunk)]))
    finally:
        await engine.close()
    theirs = MistralTokenizer.from_file(str(base / "tekken.json"))
    request: Any = ChatCompletionRequest(messages=[UserMessage(content="Where is it?")])
    assert answer["prompt_token_ids"] == theirs.encode_chat_completion(request).tokens
    assert answer["usage"]["completion_tokens"] == 4
