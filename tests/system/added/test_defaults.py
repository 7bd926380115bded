"""A system message and stop sequences that a recipe gets while its model is in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.system.serving import Server

pytestmark = pytest.mark.real
CHAT = "package:models.starter/pack/starter-chat"
SYSTEM = {"role": "system", "content": "Answer in capitals, and say nothing else."}
HI: Any = [{"role": "user", "content": "turn on the lamp"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("defaults") / "data", [], "--slots", "1") as server:
        server.wait_ready()
        assert server.http.post("/v1/models", json={"source": CHAT, "id": "mine"}).status_code == 201
        yield server


def test_they_take_effect_without_a_load_in_each_dialect(server: Server) -> None:
    openai = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    anthropic = Anthropic(base_url=server.url, api_key="none")

    def prompts(more: list[Any]) -> list[int]:
        chat = openai.chat.completions.create(model="mine", messages=[*more, *HI], max_tokens=1).usage
        response = openai.responses.create(model="mine", input=[*more, *HI], max_output_tokens=1)
        assert chat is not None
        assert response.usage is not None
        assert response.instructions is None
        system: Any = {"system": more[0]["content"]} if more else {}
        counted = anthropic.messages.count_tokens(model="mine", messages=HI, **system).input_tokens
        tokens = server.http.post("/tokenize", json={"model": "mine", "messages": [*more, *HI]}).json()["count"]
        return [chat.prompt_tokens, response.usage.input_tokens, counted, tokens]

    def text(**more: Any) -> str:
        answer = openai.chat.completions.create(model="mine", messages=HI, temperature=0, max_tokens=20, **more)
        return answer.choices[0].message.content or ""

    with openai, anthropic:
        plain, expected, whole = prompts([]), prompts([SYSTEM]), text()
        assert all(one > other for one, other in zip(expected, plain, strict=True))
        loads = server.metric("roundhouse_load_seconds_count")
        changes = {"system": SYSTEM["content"]}
        assert server.http.patch("/v1/models/mine", json={"changes": changes}).json()["version"] == 2
        assert prompts([]) == expected
        assert prompts([SYSTEM]) == expected
        changes = {"system": None, "stop": [whole[2:4]]}
        assert server.http.patch("/v1/models/mine", json={"changes": changes}).json()["version"] == 3
        assert prompts([]) == plain
        assert text() == whole.partition(whole[2:4])[0]
        assert text(stop=["no such text"]) == whole
        message = anthropic.messages.create(model="mine", messages=HI, max_tokens=20, extra_body={"temperature": 0})
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", whole[2:4])
        assert server.metric("roundhouse_load_seconds_count") == loads
