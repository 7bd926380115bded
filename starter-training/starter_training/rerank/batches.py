"""Token tensors on the training device, hard negatives from the embedding model, and batches of pairs."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from .text import Passage

QUERY_TOKENS, PASSAGE_TOKENS = 40, 180
MINED_TOKENS = 64
"""Tokens to which passages are cut for mining hard negatives."""

POOL = 40
"""Hard negatives per query: the wrong passages that the embedding model ranks highest."""

NEAR_DUPLICATE = 0.9
UNANSWERABLE_RANK = 200
"""A query is too vague to learn from if the embedding model ranks its right passage below this."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Word pieces without special tokens: `ids` [texts, width] padded with 0, `length` [texts]."""

    ids: Tensor
    length: Tensor


@dataclass(frozen=True, slots=True)
class Mined:
    """Training queries: right passages [queries], hard negatives [queries, POOL], and unit vectors for cosines."""

    query: Tensor
    right: Tensor
    hard: Tensor
    query_vectors: Tensor
    vectors: Tensor


def load_corpus(path: Path, limit: int) -> list[Passage]:
    """Read the training passages; if `limit` > 0, an even sample of about that many."""
    rows = json.loads(lzma.decompress(path.read_bytes()))
    step = max(1, len(rows) // limit) if limit else 1
    return [Passage(d, f, t, tuple(q)) for d, f, t, q in rows[::step]]


def tokenize(tokenizer: Tokenizer, texts: list[str], width: int, device: torch.device) -> Tokens:
    """Encode texts to at most `width` pieces each."""
    rows = [e.ids[:width] for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    ids = torch.zeros(len(rows), width, dtype=torch.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return Tokens(ids.to(device), torch.tensor([len(row) for row in rows], device=device))


def join(
    first: Tokens, rows: Tensor, second: Tokens | None, columns: Tensor | None, cls: int, sep: int
) -> dict[str, Tensor]:
    """Return model input for rows of `first`, alone or paired with rows of `second`: [CLS] a [SEP] (b [SEP])."""
    a = first.length[rows][:, None]
    b = second.length[columns][:, None] if second is not None and columns is not None else torch.full_like(a, -1)
    total = a + b + 3
    width = -(-int(total.max()) // 16) * 16
    at = torch.arange(width, device=rows.device)[None, :]
    ids = torch.zeros(len(rows), width, dtype=torch.long, device=rows.device)
    inside = (at >= 1) & (at <= a)
    ids = torch.where(
        inside,
        first.ids[rows].long().gather(1, (at - 1).clamp(0, first.ids.shape[1] - 1).expand(len(rows), -1)),
        ids,
    )
    if second is not None and columns is not None:
        inside = (at >= a + 2) & (at <= a + 1 + b)
        place = (at - a - 2).clamp(0, second.ids.shape[1] - 1)
        ids = torch.where(inside, second.ids[columns].long().gather(1, place), ids)
    ids = torch.where((at == a + 1) | (at == total - 1), sep, ids)
    ids[:, 0] = cls
    kinds = ((at >= a + 2) & (at < total)).long()
    return {"input_ids": ids, "attention_mask": (at < total).long(), "token_type_ids": kinds}


@torch.no_grad()
def embed(teacher: BertModel, tokens: Tokens, cls: int, sep: int, autocast: bool) -> Tensor:
    """Return unit vectors [texts, 384] by mean pooling, like the embedding model. Computes the longest texts first."""
    order = tokens.length.argsort(descending=True)
    out = torch.empty(len(order), teacher.config.hidden_size, device=order.device)
    for rows in torch.split(order, 2048 if order.is_cuda else 64):
        inputs = join(tokens, rows, None, None, cls, sep)
        with torch.autocast(order.device.type, torch.bfloat16, enabled=autocast):
            states = teacher(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][..., None]
        out[rows] = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    return out


@torch.no_grad()
def mine(passages: list[Passage], requested: list[int], query_vectors: Tensor, vectors: Tensor) -> Mined:
    """Find hard negatives for every query, and drop vague queries. `requested`: right passage of each query."""
    device = vectors.device
    facts = {fact: number for number, fact in enumerate(dict.fromkeys(p.fact for p in passages))}
    fact = torch.tensor([facts[p.fact] for p in passages], device=device)
    right = torch.tensor(requested, device=device)
    kept, hard = [], []
    for rows in torch.split(torch.arange(len(requested), device=device), 2048):
        cosine = query_vectors[rows] @ vectors.T
        own = cosine.gather(1, right[rows][:, None])
        clear = (cosine > own).sum(1) < UNANSWERABLE_RANK
        cosine[fact[None, :] == fact[right[rows]][:, None]] = -2
        cosine[vectors[right[rows]] @ vectors.T > NEAR_DUPLICATE] = -2
        kept.append(rows[clear])
        hard.append(cosine[clear].topk(min(POOL, len(passages) // 2)).indices)
    query = torch.cat(kept)
    return Mined(query, right[query], torch.cat(hard), query_vectors, vectors)


def by_length(first: Tokens, rows: Tensor, second: Tokens, columns: Tensor, parts: int) -> list[Tensor]:
    """Return the numbers of the pairs in `parts` parts, the shortest first, so that each part needs little padding."""
    return list((first.length[rows] + second.length[columns]).argsort().chunk(parts))


def mined(
    path: Path,
    passages: list[Passage],
    requested: list[int],
    texts: Callable[[], Tensor],
    queries: Callable[[], Tensor],
    device: torch.device,
) -> Mined:
    """Mine negatives with `mine`, or read them from `path`, because embedding the passages takes a core ten minutes.

    `texts` and `queries` embed the passages and the queries if necessary.
    """
    digest = hashlib.sha256(repr((passages, requested)).encode()).hexdigest()
    if not path.exists() or _made_of(path) != digest:
        found = mine(passages, requested, queries(), texts())
        tensors = {name: getattr(found, name).cpu().contiguous() for name in Mined.__dataclass_fields__}
        save_file(tensors, path, metadata={"of": digest})
    return Mined(**load_file(path, device=str(device)))


def _made_of(path: Path) -> str | None:
    with safe_open(path, "pt") as kept:
        return (kept.metadata() or {}).get("of")


def neighbours(passages: list[Passage], count: int, device: torch.device, seed: int) -> Tensor:
    """Return `count` other passages of each passage's document [passages, count], or random ones if there are none."""
    rng = random.Random(seed)
    groups: dict[str, list[int]] = {}
    for number, passage in enumerate(passages):
        groups.setdefault(passage.document, []).append(number)
    rows = []
    for passage in passages:
        others = [n for n in rng.sample(groups[passage.document], min(count + 4, len(groups[passage.document])))
                  if passages[n].fact != passage.fact][:count]  # fmt: skip
        rows.append(others + [rng.randrange(len(passages)) for _ in range(count - len(others))])
    return torch.tensor(rows, device=device)


def draw(mined: Mined, near: Tensor, rows: Tensor, negatives: int, generator: torch.Generator) -> Tensor:
    """Return candidate passages [rows, 1 + negatives]: the right one, then half hard, a fifth near, the rest random."""
    device, size = rows.device, len(rows)
    right = mined.right[rows]
    hard, close = negatives // 2 + 1, negatives // 5

    def pick(source: Tensor, count: int) -> Tensor:
        chosen = torch.rand(source.shape, generator=generator, device=device).topk(count, dim=1).indices
        return source.gather(1, chosen)

    parts = [right[:, None], pick(mined.hard[rows], hard), pick(near[right], close)]
    rest = negatives - hard - close
    parts.append(torch.randint(len(mined.vectors), (size, rest), generator=generator, device=device))
    return torch.cat(parts, dim=1)
