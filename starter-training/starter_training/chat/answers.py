"""Greedy answers of base and adapters from the server's own engine, models.chat on the real vLLM."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from models.chat.engine import VllmEngine
from models.messages import AdapterRef, Chunk, HttpCall, ResponseStart
from registry.byte_size import ByteSize
from registry.recipes.definition import AdapterPlaces, Batching, EngineSpec, Memory, Recipe, Task
from registry.recipes.fields import PathSource

BASE = "starter-chat"
AT_ONCE = 32
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Question:
    """A question to an adapter, or to the base if that is None. `tokens`: longest answer, including the end token."""

    adapter: str | None
    text: str
    tokens: int


@dataclass(frozen=True)
class Answer:
    """An answer. `finished`: the model ended it within its tokens. `prompt` and `tokens` are token ids."""

    text: str
    finished: bool
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def reference(folder: Path) -> AdapterRef:
    """Return the engine's reference to the adapter in `folder`, with the digest of its weights file."""
    weights = folder / "adapter_model.safetensors"
    rank = int(json.loads((folder / "adapter_config.json").read_text())["r"])
    digest = "sha256:" + hashlib.sha256(weights.read_bytes()).hexdigest()
    return AdapterRef(digest=digest, path=str(folder.resolve()), rank=rank, bytes=weights.stat().st_size)


def _recipe(base: Path, adapters: int, dtype: Dtype) -> Recipe:
    return Recipe(
        id=BASE, version=1, task=Task.CHAT, source=PathSource(path=str(base.resolve())),
        engine=EngineSpec(name="vllm"), context_length=512, dtype=dtype,
        memory=Memory(
            kv_cache=ByteSize(64 << 20), adapters=AdapterPlaces(device=adapters, host=adapters, max_rank=8)
        ),
        batching=Batching(max_requests=AT_ONCE, max_tokens=2048),
    )  # fmt: skip


class Served:
    """The base and its adapters in one engine: `async with Served(base, folders) as served: ...`.

    Args:
        folders: folders in peft's layout by adapter name. Each adapter gets a place, so all can answer in one batch.
        dtype: the engine's dtype; 'auto' is that of the weights, bfloat16.
    """

    def __init__(self, base: Path, folders: dict[str, Path], dtype: Dtype = "auto") -> None:
        self._base, self._dtype, self._engine = base, dtype, VllmEngine()
        self._refs = {name: reference(folder) for name, folder in folders.items()}

    async def __aenter__(self) -> Served:
        recipe = _recipe(self._base, max(1, len(self._refs)), self._dtype)
        await self._engine.load(recipe, self._base.resolve(), "cpu", lambda _progress: None)
        for ref in self._refs.values():
            await self._engine.stage(ref)
            await self._engine.place(ref, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.close()

    async def ask(self, question: Question) -> Answer:
        """Return a greedy answer. Raises RuntimeError if the engine refuses."""
        ref = self._refs[question.adapter] if question.adapter else None
        served = ref.digest if ref else BASE
        body = {
            "model": served, "messages": [{"role": "user", "content": question.text}], "temperature": 0,
            "max_tokens": question.tokens, "return_token_ids": True,
        }  # fmt: skip
        call = HttpCall(
            path="/v1/chat/completions", body=json.dumps(body).encode(), served=served, display_name=BASE, adapter=ref
        )
        status, parts = 0, list[bytes]()
        async for event in self._engine.call(call):
            if isinstance(event, ResponseStart):
                status = event.status
            elif isinstance(event, Chunk):
                parts.append(event.data)
        answer = json.loads(b"".join(parts))
        if status != 200:
            raise RuntimeError(f"the engine answered {status}: {answer}")
        choice = answer["choices"][0]
        return Answer(
            choice["message"]["content"] or "", choice["finish_reason"] == "stop",
            tuple(answer["prompt_token_ids"]), tuple(choice["token_ids"]),
        )  # fmt: skip

    async def ask_all(self, questions: Sequence[Question]) -> list[Answer]:
        """Return all answers in order, asking `AT_ONCE` at a time so that batches mix adapters."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(question: Question) -> Answer:
            async with gate:
                return await self.ask(question)

        return list(await asyncio.gather(*(one(question) for question in questions)))
