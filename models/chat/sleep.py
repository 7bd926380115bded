"""Sleep of a chat engine: vLLM's level 1, and the conditions around it.

During sleep the weights are in pinned host memory and the KV cache is freed; process, compiled code and CUDA graphs
stay. Level 2, which drops the weights, is not used, because with LoRA vLLM cannot reload them in place (issue 39934).

Before a sleep
- all adapters are removed from the engine, because the contents of their places may be lost (issue 53888); they are
  staged and placed again after the wake;
- the prefix cache is emptied, because its blocks lose their contents;
- a fixed prompt is answered. After the wake the answer must be identical, so that corrupted weights never answer a
  request.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from models.chat.adapters import EngineAdapters
from models.chat.asgi import AsgiApp, whole_answer
from models.chat.vllm import core, launch
from models.chat.vllm.cuda import sleep_memory
from models.messages import MemoryFootprint
from registry.errors import EngineFailed

log = logging.getLogger("roundhouse.chat")
TICK, QUIET_TICKS = 0.1, 10
"""Seconds between checks whether the engine is idle, and how many idle checks in a row are needed to pin memory."""
PROMPT = "The quick brown fox jumps over the lazy dog. In the beginning"
TOKENS = 16
SEEN_WITHIN = 5.0
"""Seconds within which freed memory must show as free on the device."""
SEEN = 0.9
"""Share of it that must show, because other processes may take some at the same time."""


class Sleeper:
    """Puts an engine to sleep and wakes it up.

    Args:
        engine: vLLM's AsyncLLM.
        app: vLLM's HTTP application on top of it; `model` is its name of the base.
        adapters: None if the engine has no adapters.
        on_device: bytes that the awake engine holds on the device.
        host_bytes: returns what its processes hold in host memory, as counted by the system.
    """

    def __init__(
        self, engine: Any, app: AsgiApp, model: str, adapters: EngineAdapters | None, on_device: int,
        host_bytes: Callable[[], int],
    ) -> None:  # fmt: skip
        self._engine, self._app, self._model, self._adapters = engine, app, model, adapters
        self._on_device, self._host_bytes = on_device, host_bytes
        self._base = 0
        self._known: str | None = None
        self._prepares = False
        self.able = False

    async def expected(self) -> MemoryFootprint:
        """Return the expected memory asleep, after which the engine is able to sleep."""
        pool, kept_bytes, _, _ = await self._facts()
        self.able, self._base = True, self._host_bytes()
        return MemoryFootprint(device_bytes=max(0, self._on_device - pool), host_bytes=self._base + kept_bytes)

    async def prepare(self, is_idle: Callable[[], bool]) -> None:
        """Pin host memory for the first sleep while the engine is idle, one block at a time."""
        self._prepares, quiet = True, 0
        while True:
            await asyncio.sleep(TICK)
            quiet = quiet + 1 if is_idle() else 0
            if quiet < QUIET_TICKS:
                continue
            try:
                done, blocks = await launch.ask(self._engine, sleep_memory.prepare_sleep, True)
            except Exception as error:  # not fatal: the engine's end is noticed elsewhere, and a sleep pins by itself
                log.warning("could not pin memory for a sleep in advance", extra={"cause": str(error)})
                return
            if done == sleep_memory.FAILED:
                log.warning("not enough host memory to pin memory for a sleep in advance", extra={"blocks": blocks})
                return
            if done >= blocks:
                log.info("pinned memory for a sleep in advance", extra={"blocks": blocks})
                return

    async def down(self) -> MemoryFootprint:
        """Fall asleep. Raises EngineFailed, after which the engine must not be used."""
        if self._known is None:
            self._known = await self._answer()
        if self._adapters is not None:
            await self._adapters.forget()
        if await self._engine.reset_prefix_cache() is False:
            raise EngineFailed("the prefix cache could not be emptied: a request is in the engine still")
        if self._prepares:
            await launch.ask(self._engine, sleep_memory.prepare_sleep, False)
        pool, _, free, _ = await self._facts()
        await self._engine.sleep(level=1)
        return await self._held(await self._given_back(pool, free))

    async def up(self) -> MemoryFootprint:
        """Wake up and check the answer. Raises EngineFailed, after which the engine must not be used."""
        await self._engine.wake_up()
        if await self._engine.is_sleeping():
            raise EngineFailed("vLLM did not wake up")
        await self._engine.reset_prefix_cache()
        answer = await self._answer()
        if answer != self._known:
            raise EngineFailed("vLLM woke with other weights: it does not answer a fixed prompt as before")
        return await self._held(0)

    async def _held(self, given_back: int) -> MemoryFootprint:
        pinned = (await self._facts())[3]  # kept for the next sleep; whether the system counts it is up to the driver
        on_host = max(self._host_bytes(), self._base + pinned)
        return MemoryFootprint(
            device_bytes=max(0, self._on_device - given_back), host_bytes=on_host if self._on_device else 0
        )

    async def _given_back(self, pool: int, free_before: int) -> int:
        """Return the bytes that became free on the device, at most `pool`."""
        deadline = asyncio.get_running_loop().time() + SEEN_WITHIN
        while True:
            gained = (await self._facts())[2] - free_before
            if gained >= SEEN * pool:
                return pool
            if asyncio.get_running_loop().time() > deadline:
                return max(0, gained)
            await asyncio.sleep(0.02)

    async def _facts(self) -> list[int]:
        facts: list[int] = await launch.ask(self._engine, core.sleep_facts)
        return facts

    async def _answer(self) -> str:
        """Return the base model's greedy answer to a fixed prompt."""
        body = {"model": self._model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        status, data = await whole_answer(self._app, "/v1/completions", body)
        if status != 200:
            raise EngineFailed(f"vLLM answered a fixed prompt with status {status}")
        text: str = json.loads(data)["choices"][0]["text"]
        return text
