"""Fine-tunes the starter reranker: `python -m starter_training.rerank.train --data DIR --minutes 5 --out DIR2`.

The loss is a softmax over one right and fifteen wrong passages, plus a binary loss that makes the sigmoid of the logit
a relevance in [0, 1], plus a distillation that keeps the order of the wrong passages near the embedding model's. The
learning rate follows the clock, so that the run uses exactly its minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, BertModel

from registry.files.context import native_bfloat16

from . import batches
from .held_out import HeldOut, summary
from .matching import HEADS, add_matching_heads
from .shrink import MAX_TOKENS, SPECIAL, cut_tokenizer, load_int8, make_student

NEGATIVES = 15
POSITIVE_WEIGHT = 4.0
"""Weight of the right passage in the binary loss, so that 0.5 is a useful threshold despite 15 wrong ones."""

CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
BINARY_SHARE, TEACHER_SHARE, TEACHER_TEMPERATURE = 0.4, 0.15, 0.07


class Clock:
    """The elapsed share of the training, by steps if a step count is given, otherwise by the wall clock."""

    def __init__(self, seconds: float, steps: int) -> None:
        self.seconds, self.steps, self.done, self.begun = seconds, steps, 0, time.monotonic()

    def share(self) -> float:
        """Return 0 at the start, and 1 or more at the end."""
        return self.done / self.steps if self.steps else (time.monotonic() - self.begun) / self.seconds

    def rate(self, peak: float) -> float:
        """Return the learning rate: 4 % warm-up, then linear decay to a hundredth."""
        share = self.share()
        return peak * min(max(share, 1e-3) / 0.04, 1.0, max(0.01, 1 - share))


def loss_of(logits: Tensor, cosines: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss for logits and cosines, both [queries, 1 + negatives] with the right passage first."""
    logits = logits.float()
    target = torch.zeros_like(logits)
    target[:, 0] = 1
    ranking = -functional.log_softmax(logits, 1)[:, 0].mean()
    weight = torch.where(target > 0, POSITIVE_WEIGHT, 1.0)
    binary = functional.binary_cross_entropy_with_logits(logits, target, weight)
    teacher = functional.softmax(cosines[:, 1:] / TEACHER_TEMPERATURE, 1)
    kept = functional.kl_div(functional.log_softmax(logits[:, 1:], 1), teacher, reduction="batchmean")
    total = ranking + BINARY_SHARE * binary + TEACHER_SHARE * kept
    first = (logits.detach().argmax(1) == 0).float().mean()
    parts = {"ranking": ranking, "binary": binary, "teacher": kept}
    return total, {**{key: value.detach() for key, value in parts.items()}, "first": first}


@torch.no_grad()
def score_cases(model: BertForSequenceClassification, tokenizer: Tokenizer, held_out: HeldOut, split: str,
                device: torch.device) -> list[list[float]]:  # fmt: skip
    """Return the logits of every candidate of the cases of `split`, and empty rows for other cases."""
    passages = batches.tokenize(tokenizer, held_out.passages, batches.PASSAGE_TOKENS, device)
    queries = batches.tokenize(tokenizer, [c.query for c in held_out.cases], batches.QUERY_TOKENS, device)
    model.eval()
    scores: list[list[float]] = []
    for number, case in enumerate(held_out.cases):
        if case.split != split:
            scores.append([])
            continue
        columns = torch.tensor(case.candidates, device=device)
        inputs = batches.join(queries, torch.full_like(columns, number), passages, columns, CLS, SEP)
        scores.append(model(**inputs).logits[:, 0].float().tolist())
    model.train()
    return scores


def save(model: BertForSequenceClassification, tokenizer: Tokenizer, data: Path, folder: Path) -> None:
    """Write the model in float16 with its tokenizer, for sentence-transformers' CrossEncoder."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().half().contiguous() for name, value in model.state_dict().items()}
    copy = BertForSequenceClassification(model.config).half()
    copy.load_state_dict(state)
    copy.config.architectures = ["BertForSequenceClassification"]
    copy.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    copy.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((data / "original_tokenizer_config.json").read_text())
    settings.pop("name_or_path", None)
    settings.update(model_max_length=MAX_TOKENS, tokenizer_class="PreTrainedTokenizerFast",
                    model_input_names=["input_ids", "token_type_ids", "attention_mask"])  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


@dataclass(frozen=True)
class Corpus:
    """What a training draws from: `mined` with its tokens, and each passage's nearest ones."""

    size: int
    mined: batches.Mined
    near: Tensor
    passages: batches.Tokens
    queries: batches.Tokens


def read_corpus(
    options: argparse.Namespace,
    teacher: BertModel,
    tokenizers: tuple[Tokenizer, Tokenizer],
    device: torch.device,
    say: Callable[[str], None],
) -> Corpus:
    """Read the corpus, and find hard negatives by the embedding model. tokenizers: the teacher's and the student's."""
    data, fast, (large, small) = Path(options.data), device.type == "cuda", tokenizers
    passages = batches.load_corpus(data / "corpus.json.xz", options.limit)
    pairs = [(number, query) for number, passage in enumerate(passages) for query in passage.queries]
    texts, requested = [p.text for p in passages], [query for _, query in pairs]
    say(f"{device}: {len(passages)} passages, {len(pairs)} queries; embedding them")

    def embedded(given: list[str], most: int) -> Tensor:
        return batches.embed(teacher, batches.tokenize(large, given, most, device), CLS, SEP, fast)

    mined = batches.mined(
        data / f"mined-{options.limit}.safetensors",
        passages,
        [number for number, _ in pairs],
        lambda: embedded(texts, batches.MINED_TOKENS),
        lambda: embedded(requested, batches.QUERY_TOKENS),
        device,
    )
    near = batches.neighbours(passages, 6, device, options.seed)
    passage_tokens = batches.tokenize(small, texts, options.passage_tokens, device)
    query_tokens = batches.tokenize(small, requested, batches.QUERY_TOKENS, device)
    say(
        f"hard negatives found, {len(mined.query)} queries kept, "
        f"{float(passage_tokens.length.float().mean()):.0f} tokens a passage"
    )
    return Corpus(len(passages), mined, near, passage_tokens, query_tokens)


def new_student(
    options: argparse.Namespace, teacher: BertModel, corpus: Corpus, device: torch.device
) -> BertForSequenceClassification:
    """Return the network before its training, made from layers of the embedding model."""
    sample = torch.arange(0, corpus.size, max(1, corpus.size // 128), device=device)
    inputs = batches.join(corpus.passages, sample, None, None, CLS, SEP)
    layers = [int(layer) for layer in options.layers.split(",")]
    model = make_student(
        teacher, options.vocabulary, layers, options.hidden, inputs["input_ids"], inputs["attention_mask"]
    )
    if options.matching:
        add_matching_heads(model, SEP, options.seed, options.matching)
    model.to(device).train()
    return model


def train(
    options: argparse.Namespace,
    model: BertForSequenceClassification,
    corpus: Corpus,
    look: Callable[[], dict[str, float]],
    say: Callable[[str], None],
) -> tuple[Clock, int]:
    """Train the model. Returns the clock, and the number of pairs. look: scores the model on the way."""
    device, mined = corpus.near.device, corpus.mined
    fast = device.type == "cuda"
    plain = [p for n, p in model.named_parameters() if p.ndim < 2 or "embeddings" in n]
    heavy = [p for n, p in model.named_parameters() if not (p.ndim < 2 or "embeddings" in n)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": heavy, "weight_decay": 0.01}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.98), fused=fast)
    generator = torch.Generator(device).manual_seed(options.seed)
    order, at, seen = torch.empty(0, dtype=torch.long, device=device), 0, 0
    clock, last, next_look = Clock(options.minutes * 60, options.steps), 0.0, 0.25
    while clock.share() < 1:
        if at + options.queries > len(order):
            order, at = torch.randperm(len(mined.query), generator=generator, device=device), 0
        picked = order[at : at + options.queries]
        at += options.queries
        chosen = batches.draw(mined, corpus.near, picked, options.negatives, generator)
        logits = _logits(model, corpus, mined.query[picked], chosen, fast)
        similar = (mined.vectors[chosen] * mined.query_vectors[mined.query[picked]][:, None]).sum(-1)
        loss, parts = loss_of(logits, similar)
        for group in optimizer.param_groups:
            group["lr"] = clock.rate(options.rate)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        clock.done += 1
        seen += chosen.numel()
        if time.monotonic() - last > 10:
            last = time.monotonic()
            speed = seen / (last - clock.begun)
            stated = " ".join(f"{key} {float(value):.3f}" for key, value in parts.items())
            say(f"step {clock.done} ({clock.share():.0%}) {stated} | {speed:.0f} pairs/s")
        if clock.share() >= next_look and clock.share() < 0.97:
            next_look += 0.25
            say(f"dev nDCG@10 {look()}")
    return clock, seen


def _logits(
    model: BertForSequenceClassification, corpus: Corpus, question: Tensor, chosen: Tensor, fast: bool
) -> Tensor:
    """Return the logits of queries with their chosen passages, both by number, in the shape of `chosen`."""
    query_ids, displayed = question.repeat_interleave(chosen.shape[1]), chosen.flatten()
    chunks = batches.by_length(corpus.queries, query_ids, corpus.passages, displayed, 1 if fast else 4)
    with torch.autocast(chosen.device.type, torch.bfloat16, enabled=fast or native_bfloat16()):
        scored = [
            model(**batches.join(corpus.queries, query_ids[rows], corpus.passages, displayed[rows], CLS, SEP)).logits
            for rows in chunks
        ]
    return torch.cat(scored)[torch.cat(chunks).argsort()].view(chosen.shape)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train according to the options; returns the report for train.json."""
    begun = time.monotonic()
    name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name if options.device == "auto" else options.device)
    fast = device.type == "cuda"
    torch.manual_seed(options.seed)
    if fast:
        torch.set_float32_matmul_precision("high")
    data, out = Path(options.data), Path(options.out)

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:6.1f} s] {text}", flush=True)

    vocabulary = json.loads((data / "vocabulary.json").read_text(encoding="utf-8"))
    template = json.loads((data / "original_tokenizer.json").read_text(encoding="utf-8"))
    small = cut_tokenizer(template, vocabulary[: options.vocabulary])
    teacher = load_int8(data / "teacher.safetensors", BertConfig.from_pretrained(data / "original_config.json"))
    teacher.to(device)
    corpus = read_corpus(options, teacher, (cut_tokenizer(template, vocabulary), small), device, say)
    model = new_student(options, teacher, corpus, device)
    held_out = HeldOut.load(data / "held_out.json.xz")
    if options.limit:
        held_out = HeldOut(held_out.passages, held_out.cases[::12])
    cosines = [case.cosines for case in held_out.cases]
    say(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters; "
        f"embedding on dev {summary(held_out, cosines, 'dev')}"
    )

    def scores(split: str) -> dict[str, float]:
        return summary(held_out, score_cases(model, small, held_out, split, device), split)

    clock, seen = train(options, model, corpus, lambda: scores("dev"), say)
    trained = time.monotonic() - clock.begun
    model.eval()
    save(model, small, data, out / "starter-rerank")
    final = {
        split: {"embedding": summary(held_out, cosines, split), "reranker": scores(split)} for split in ("dev", "test")
    }
    report = {
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "passages": corpus.size, "queries": len(corpus.mined.query), "steps": clock.done, "pairs": seen,
        "epochs": round(clock.done * options.queries / len(corpus.mined.query), 2),
        "training_seconds": round(trained, 1),
        "pairs_per_second": round(seen / trained), "total_seconds": round(time.monotonic() - begun, 1),
        "hardware": torch.cuda.get_device_name() if fast else f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "torch": torch.__version__, "transformers": transformers.__version__, "ndcg_at_10": final,
    }  # fmt: skip
    (out / "train.json").write_text(json.dumps(report, indent=1) + "\n")
    say(f"embedding {final['test']['embedding']}")
    say(f"reranker  {final['test']['reranker']}")
    return report


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", required=True, help="folder that prepare wrote")
    parser.add_argument("--out", required=True, help="folder for starter-rerank/ and train.json")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead of by the clock")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--layers", default="0,1,2", help="layers of the embedding model to keep")
    parser.add_argument("--hidden", type=int, default=768, help="neurons kept in each feed-forward block")
    parser.add_argument("--vocabulary", type=int, default=5600)
    parser.add_argument("--queries", type=int, default=96, help="queries in a batch")
    parser.add_argument(
        "--passage-tokens", type=int, default=batches.PASSAGE_TOKENS, help="most tokens of a passage in training"
    )
    parser.add_argument("--negatives", type=int, default=NEGATIVES, help="wrong passages per query")
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--matching", type=int, default=HEADS, help="heads that start with matching words")
    parser.add_argument("--limit", type=int, default=0, help="use only about this many passages, for a trial")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
