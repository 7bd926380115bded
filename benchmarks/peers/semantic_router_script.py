"""aurelio's semantic-router on given examples: its choices on held-out ones, and the time of concurrent calls.

Run by benchmarks/routing/decisions.py in its own environment. usage: semantic_router_script.py FOLDER
FOLDER has given.json (fit, held: texts with their route or null; asked, clients, url) and vectors.npy of fit and held.
Prints one JSON line.
"""

import asyncio
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from pydantic import PrivateAttr
from semantic_router import IndexedRouter, Route
from semantic_router.encoders import DenseEncoder

FOLDER = Path(sys.argv[1])
ROUNDS = 3


class Encoder(DenseEncoder):  # type: ignore[misc]  # not installed in our environment
    """Returns known vectors; once `_http` is set, requests them over HTTP instead."""

    _known: dict[str, Any] = PrivateAttr(default_factory=dict)
    _http: Any = PrivateAttr(default=None)

    def __call__(self, docs: list[str]) -> list[list[float]]:
        return [self._known[doc] for doc in docs]

    async def acall(self, docs: list[str]) -> list[list[float]]:
        if self._http is None:
            return self(docs)
        answer = await self._http.post("/v1/embeddings", json={"model": "starter-embed", "input": docs})
        return [item["embedding"] for item in answer.raise_for_status().json()["data"]]


async def main() -> None:
    given = json.loads((FOLDER / "given.json").read_text())
    texts = [text for text, _ in given["fit"] + given["held"]]
    encoder = Encoder(name="given", type="given")
    encoder._known = dict(zip(texts, np.load(FOLDER / "vectors.npy").tolist(), strict=True))
    names = sorted({name for _, name in given["fit"] if name is not None})
    routes = [Route(name=name, utterances=[text for text, n in given["fit"] if n == name]) for name in names]
    router = IndexedRouter(encoder=encoder, routes=routes)
    held = [text for text, _ in given["held"]]
    await router.afit(held, [name for _, name in given["held"]])
    chosen: list[Any] = [await router.acall(text) for text in held]
    rounds: list[list[float]] = []
    async with httpx.AsyncClient(base_url=given["url"], timeout=60, trust_env=False) as http:
        encoder._http = http
        for _ in range(ROUNDS + 1):
            rounds.append(await timed(router, given["asked"], given["clients"]))
    summary = {
        "version": version("semantic-router"),
        "held": [(choice.name, choice.confidence) for choice in chosen],
        "milliseconds": rounds[1:],
    }
    print(json.dumps(summary))


async def timed(router: IndexedRouter, queries: list[str], clients: int) -> list[float]:
    waiting, result = iter(queries), list[float]()

    async def client() -> None:
        for text in waiting:
            began = time.perf_counter()
            await router.acall(text)
            result.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(client() for _ in range(clients)))
    return result


asyncio.run(main())
