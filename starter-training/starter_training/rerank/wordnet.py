"""General vocabulary: glosses of WordNet 3.0 (Debian package wordnet-base; the WordNet licence permits this)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from .text import Passage, cut

FILES = ("data.noun", "data.verb", "data.adj")


def _common(root: Path) -> set[str]:
    """Return the lemmas in WordNet's tagged texts (file `cntlist.rev`)."""
    lines = (root / "cntlist.rev").read_text(encoding="utf-8").splitlines()
    return {line.split("%")[0] for line in lines}


def gloss_passages(root: Path) -> Iterator[Passage]:
    """Yield the definition of every synset with a common lemma. One in three includes the lemma itself."""
    common = _common(root)
    for name in FILES:
        for line in (root / name).read_text(encoding="utf-8").splitlines():
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            if not gloss or len(fields) < 5:
                continue
            lemmas = [fields[4 + 2 * i].split("(")[0].lower() for i in range(int(fields[3], 16))]
            lemma = lemmas[0].replace("_", " ")
            if lemmas[0] not in common or len(lemma) < 3:
                continue
            rng = random.Random(f"{name}:{fields[0]}")
            definition, *examples = (part.strip(' "') for part in gloss.strip().split('; "'))
            if len(definition) < 25:
                continue
            ask = (
                f"what is {lemma}?",
                f"{lemma} definition",
                lemma,
                f"define {lemma}",
                f"meaning of {lemma}",
            )
            queries = [rng.choice(ask) if name == "data.noun" else rng.choice(ask[1:])]
            if examples and rng.random() < 0.3:
                queries.append(examples[0])
            text = f"{lemma}: {definition}" if rng.random() < 0.34 else definition
            if len(lemmas) > 1 and rng.random() < 0.3:
                text = f"{lemmas[1].replace('_', ' ')}: {definition}"
            yield Passage(f"wordnet/{lemmas[0]}", f"wordnet/{lemmas[0]}", cut(text), tuple(queries))
