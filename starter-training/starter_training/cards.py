"""The models' cards, pack/*/CARD.md: templates (card_texts/) filled with the figures of figures.json."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from starter_training import figures
from starter_training.chat.report import BAR_OWN, Matrix, table

TEXTS = Path(__file__).parent / "card_texts"
Section = figures.Section
POOR = 0.4
"""Word error rate above which a card has a warning at its top."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(gain: float) -> str:
    return f"{gain:+.3f}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


def _chat(section: Section) -> dict[str, str]:
    matrix, training = Matrix(**section["measured"]), section["training"]
    own, summary = matrix.own(), matrix.summary()
    low = sorted((share, name) for name, share in own.items() if share < BAR_OWN)
    yet = "\n".join(f"- `{name}`: {_percent(share)}" for share, name in low)
    return {
        "matrix": table(matrix),
        "not_there": yet or "None: every adapter reaches the aim.",
        "reached": str(len(own) - len(low)),
        "own_mean": _percent(summary["own_mean"]),
        "own_inputs": str(matrix.own_inputs),
        "other_inputs": str(matrix.other_inputs),
        "wrong_mean": _percent(summary["wrong_mean"]),
        "wrong_highest": _percent(summary["wrong_highest_cell"]),
        "base_mean": _percent(summary["base_mean"]),
        "served": _served(matrix),
        "date": matrix.date,
        "talk": "\n".join(f"| {name} | {_percent(share)} |" for name, share in matrix.talk.items()),
        "seed": str(training["seed"]),
        "base_minutes": _minutes(training["base"]["seconds"]),
        "base_steps": str(training["base"]["steps"]),
        "base_tokens": f"{training['base']['tokens'] / 1e6:.1f}",
        "adapter_minutes": _minutes(training["adapters"]["seconds"]),
        "adapter_steps": str(training["adapters"]["steps"]),
        "again": _again(training.get("again", ())),
        "hardware": _hardware(training),
    }


def _again(runs: Sequence[dict[str, Any]]) -> str:
    names = sorted({name for run in runs for name in run["own"]})
    if not names:
        return ""
    steps, tokens, seconds = (sum(run[figure] for run in runs) for figure in ("steps", "tokens", "seconds"))
    text = (
        f"Then some of them were trained further on the same base (`--tasks`): {', '.join(names)}; {steps} steps,"
        f" {tokens / 1e6:.1f} million tokens, {_minutes(seconds)} minutes on a busy core."
    )
    return "\n" + textwrap.indent(textwrap.fill(text, 118, break_on_hyphens=False), "  ")


def _served(matrix: Matrix) -> str:
    if not matrix.served_inputs:
        return "not measured on these weights yet."
    count = matrix.served_inputs * len(matrix.served)
    return (
        f"the first {matrix.served_inputs} inputs of each task: mean"
        f" {_percent(sum(matrix.served.values()) / len(matrix.served))}. The teacher-forced pass gives another"
        f" verdict on {matrix.disagree} of these {count} inputs."
    )


def _hardware(training: dict[str, Any]) -> str:
    gpu = training.get("gpu", "none")
    return "one CPU core (x86-64), no GPU" if gpu == "none" else f"one {gpu}"


def _rerank(section: Section) -> dict[str, str]:
    measured, training = section["measured"], section["training"]
    reranker, embedding = measured["reranker"], measured["embedding"]
    gain = reranker["documents"] - embedding["documents"]
    kinds = ("documents", "manual", "docstrings", "wordnet", "facts")
    return {
        "rows": "\n".join(
            f"| {kind} | {embedding[kind]:.3f} | {reranker[kind]:.3f} | {_points(reranker[kind] - embedding[kind])} |"
            for kind in kinds
            if kind in reranker
        ),
        "gain": _points(gain),
        "verdict": (
            "The aim (at least +0.05) is reached." if gain >= 0.05
            else "**The aim (at least +0.05) is not reached.**" + (
                " So far the model ranks WORSE than the embedding model: use starter-embed for ranking until it is"
                " trained further; this one only shows the interface." if gain < 0 else "")
        ),
        "cases": str(measured["cases"]),
        "date": measured["date"],
        "passages": f"{training['passages']:,}",
        "queries": f"{training['queries']:,}",
        "steps": str(training["steps"]),
        "passage_tokens": str(training["options"]["passage_tokens"]),
        "pairs": f"{training['pairs']:,}",
        "epochs": str(training["epochs"]),
        "minutes": _minutes(training["training_seconds"]),
        "hardware": str(training["hardware"]),
        "options": ", ".join(f"--{key.replace('_', '-')} {value}" for key, value in training["options"].items()),
    }  # fmt: skip


def _speech(section: Section) -> dict[str, str]:
    measured, training = section["measured"], section["training"]
    window = measured["window"]
    names = {
        "sentences": "held-out sentences, all voices of the training side",
        "voices": "held-out sentences, held-out voices",
        "recordings": "recordings of 2 to 12 sentences",
    }
    beside = {
        "recordings_whole": "the same in windows of 30 s, Whisper's own",
        "recordings_pipeline": f"the same by faster-whisper's batched pipeline (`chunk_length={window['seconds']}`)",
    }
    aims = {"sentences": 0.08, "voices": 0.12, "recordings": 0.15}
    missed = [label for key, label in names.items() if measured.get(key, 0.0) > aims[key]]
    bad = [label for key, label in names.items() if measured.get(key, 0.0) > POOR]
    return {
        "rows": "\n".join(
            f"| {label} | {_percent(measured[key])} | {f'{100 * aims[key]:.0f} %' if key in aims else ''} |"
            for key, label in (names | beside).items()
            if key in measured
        ),
        "verdict": (
            f"**Poor so far (word error rate over {100 * POOR:.0f} %): {'; '.join(bad)}.** There it only shows that"
            " the path from audio to text works, until it is trained longer."
            if bad
            else f"**Aims not reached: {'; '.join(missed)}.**" if missed else "All aims are reached."
        ),
        "count": str(measured["count"]),
        "fit": _percent(measured["recordings_segment_fit"]),
        "fit_whole": _percent(measured["recordings_segment_fit_whole"]),
        "window": str(window["seconds"]),
        "padded": str(window["padded"]),
        "invented": str(len(measured["invented"])),
        "invented_plain": str(len(measured["invented_plain"])),
        "invented_of": str(measured["without_speech"]),
        "date": measured["date"],
        "minutes": _minutes(training["seconds"]),
        "steps": str(training["steps"]),
        "seed": str(training["seed"]),
        "hours": str(training["audio_hours"]),
        "parameters": f"{training['parameters'] / 1e6:.2f}",
        "vocabulary": str(training["vocabulary"]),
        "voices": str(measured["trained_voices"]),
        "hardware": training["device"] or "one CPU core (x86-64), no GPU",
        "samples": "\n".join(
            f"- `{name}.wav` ({one['voice']}): \"{one['text']}\"; "
            + (f"transcribed exactly, candidate {one['tried']}" if one["tried"] else "**not** transcribed exactly")
            for name, one in measured["samples"].items()
        ),
    }  # fmt: skip


def _embed(section: Section) -> dict[str, str]:
    measured = section["measured"]
    return {"ndcg": f"{measured['documents']:.3f}", "cases": str(measured["cases"]), "date": measured["date"]}


def _auto(section: Section) -> dict[str, str]:
    measured, training = section["measured"], section["training"]
    both, letters = measured["both"], measured["letters"]
    return {
        **{name: _percent(both[name]) for name in ("right", "wrong", "abstained")},
        **{f"letters_{name}": _percent(letters[name]) for name in ("right", "wrong", "abstained")},
        "typed_right": _percent(measured["typed"]["right"]),
        **{name: str(measured[name]) for name in ("inputs", "kilobytes", "date")},
        **{name: str(training[name]) for name in ("examples", "chosen_on", "seed")},
        "seconds": f"{training['seconds']:.0f}",
    }


MAKERS: dict[str, Callable[[Section], dict[str, str]]] = {
    "starter-chat": _chat, "starter-rerank": _rerank, "starter-speech": _speech, "starter-embed": _embed,
    "auto": _auto,
}  # fmt: skip


def card(model: str, pack: Path) -> str:
    """Return the card of a model. Raises KeyError if its figures have not been measured yet."""
    template = Template((TEXTS / f"{model}.md").read_text())
    return template.substitute(MAKERS[model](figures.load(pack)[model]))


def write_cards(pack: Path) -> list[Path]:
    """Write the card of every model that has been measured; returns the files."""
    written = []
    for model, section in figures.load(pack).items():
        if "measured" in section:
            path = pack / model / "CARD.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(card(model, pack))
            written.append(path)
    return written
