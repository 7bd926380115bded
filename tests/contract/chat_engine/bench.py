"""A loaded chat engine on the real vLLM, its adapters and short functions that call it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.chat.engine import ChatCall, VllmEngine
from models.chat.vllm import core, launch
from models.messages import AdapterRef, Chunk, HttpCall, Progress, ResponseEnd, ResponseStart, Usage
from tests.contract.chat.nasty import TEXT
from tests.contract.chat.oracle import Oracle, tokens_of

PLACES = 4


@dataclass
class Answer:
    status: int
    data: bytes
    usage: Usage

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        lines = self.data.decode().split("\n")  # a text may contain other line ends
        lines = [line[6:] for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Bench:
    """A loaded engine and its adapters."""

    def __init__(self, engine: VllmEngine, base: Path, adapters: list[AdapterRef], oracle: Oracle) -> None:
        self.engine, self.base, self.adapters, self.oracle = engine, base, adapters, oracle
        self.progress: list[Progress] = []

    def begin(
        self, path: str, body: dict[str, Any] | bytes, adapter: AdapterRef | None = None, *, strict: bool = False
    ) -> ChatCall:
        served = adapter.digest if adapter else "tiny"
        raw = body if isinstance(body, bytes) else json.dumps({"model": served, **body}).encode()
        return self.engine.call(
            HttpCall(path=path, body=raw, served=served, display_name="my name", adapter=adapter, strict=strict)
        )

    async def ask(self, path: str, body: dict[str, Any] | bytes, adapter: AdapterRef | None = None) -> Answer:
        status, parts, usage = 0, [], Usage()
        async for event in self.begin(path, body, adapter):
            match event:
                case ResponseStart():
                    status = event.status
                case Chunk():
                    parts.append(event.data)
                case ResponseEnd():
                    usage = event.usage
        return Answer(status, b"".join(parts), usage)

    async def greedy(self, text: str, adapter: AdapterRef | None, tokens: int = 24) -> tuple[list[int], list[int]]:
        """Return prompt and answer as token ids."""
        body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        choice = (await self.ask(TEXT, body, adapter)).json["choices"][0]
        return list(choice["prompt_token_ids"]), tokens_of(choice)

    async def hold(self, *adapters: AdapterRef) -> None:
        """Put exactly these adapters into places."""
        placed = [ref for ref in self.adapters if self.engine._adapters.may_be_named(ref.digest)]  # type: ignore[union-attr]
        for ref in placed:
            if ref not in adapters:
                await self.engine.drop(ref.digest)
        for ref in adapters:
            await self.engine.stage(ref)
            await self.engine.place(ref, None)

    def unfinished(self) -> int:
        return int(self.engine._engine.output_processor.get_num_unfinished_requests())

    def registered(self) -> list[str]:
        """Return the slot's ids of requests: of their states, of parents of several answers, and clients' own ids."""
        processor = self.engine._engine.output_processor
        return [*processor.request_states, *processor.parent_requests, *processor.external_req_ids]

    async def held(self) -> tuple[int, int]:
        """Return how many adapters EngineCore has in host memory and in places."""
        host, placed = await launch.ask(self.engine._engine, core.held_adapters)
        return len(host), len(placed)
