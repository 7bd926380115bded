"""Intents: training, measures, reports and files."""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from registry.errors import Unfit
from routing.intents.kinds import digest_of
from routing.intents.measures import auroc, calibration_error, threshold_for
from routing.intents.model import OUT, IntentModel, from_bytes, to_bytes
from routing.intents.report import picture, text
from routing.intents.spelling import Spelling, mistyped, recased
from routing.intents.training import Example, TrainingOptions, TrainingResult, split, train

WORDS = ("rain", "snow", "hail", "storm", "ten", "twenty", "forty", "fifty")
PLACES = ("rome", "oslo", "lima", "cairo", "delhi", "anna", "bert", "carl")
FORMS = {"weather": "will it {} tomorrow in {}", "money": "send {} euros to {}", OUT: "the {} of {}"}
DATA = Path(__file__).parents[4] / "shared" / "data" / "intents150.jsonl"


@pytest.fixture(scope="module")
def fitted() -> TrainingResult:
    examples = [Example(form.format(w, p), label) for label, form in FORMS.items() for w in WORDS for p in PLACES]
    spelling = Spelling.of(e.text for e in examples[::2])
    return train(examples[::2], examples[1::2], options=TrainingOptions(iterations=20), spelling=spelling)


def test_the_confusion_table_is_written_and_drawn(fitted: TrainingResult) -> None:
    (measured,) = fitted.measured
    wrong = measured.__class__(**{
        **{name: getattr(measured, name) for name in measured.__slots__},
        "confusion": (("weather", "weather", 30), ("money", "weather", 2), (OUT, OUT, 32), ("<b>", OUT, 1)),
    })  # fmt: skip
    reported = text(wrong)
    for word in ("right intent", "calibration error", "of no intent, left out", "AUROC"):
        assert word in reported
    assert re.search(r"money +-> +weather +2", reported)
    drawn = picture(wrong)
    assert re.findall(r"<title>([^<]*)</title>", drawn) == [
        "- -&gt; -: 32", "&lt;b&gt; -&gt; -: 1", "money -&gt; weather: 2", "weather -&gt; weather: 30",
    ]  # fmt: skip
    assert drawn.count("<text ") == 2 * 4, "each label has a row and a column"


def test_measures_are_of_the_held_out_examples(fitted: TrainingResult) -> None:
    (measured,) = fitted.measured
    assert (measured.examples, measured.out_of_scope) == (64, 32)
    assert sum(count for _, _, count in measured.confusion) == 96
    assert measured.accuracy > 0.95
    assert measured.out_of_scope_recall is not None


def test_repetitions_of_a_text_are_not_split() -> None:
    """Half of the held-out examples of a file with each line twice had been fitted, and nearly all were right."""
    texts = [f"{text} {number}" for number in range(20) for text in ("rain", "Rain ", "euros")]
    fit, held_out = split(texts, ["money" if "euros" in text else "weather" for text in texts], 0.2)
    assert sorted(fit + held_out) == list(range(60))
    assert len(held_out) == 4 * 3
    words = [tuple(text.lower().split()) for text in texts]
    assert not {words[index] for index in fit} & {words[index] for index in held_out}


def test_a_model_has_the_same_digest_after_reading(fitted: TrainingResult) -> None:
    data = to_bytes(fitted.model)
    again = from_bytes(data)
    assert isinstance(again, IntentModel)
    assert digest_of(to_bytes(again)) == digest_of(data)
    assert (
        again.predict("will it rain tomorrow in rome").confidence
        == fitted.model.predict("will it rain tomorrow in rome").confidence
    )
    for bad in (b"", b"\x80\x04K\x01.", data[:-10], data.replace(rb"\"format\": 1", rb"\"format\": 2"), b"\0" * 100):
        with pytest.raises(Unfit) as refused:
            from_bytes(bad)
        assert refused.value.code == "bad_router_model"


def test_typing_errors_are_corrected_also_after_reading(fitted: TrainingResult) -> None:
    again = from_bytes(to_bytes(fitted.model))
    assert isinstance(again, IntentModel)
    for model in (fitted.model, again):
        assert model.read("Will it rian TOMOROW in rome") == "Will it rain tomorrow in rome"
        typed, meant = (model.predict(f"will it {words} in rome") for words in ("rian tomorow", "rain tomorrow"))
        assert (typed.label, typed.confidence) == (meant.label, meant.confidence)


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": np.array([[0, 99, 1]], np.int32)},
        {"pairs": np.array([[-1, 1, 1]], np.int32)},
        {"pairs": np.zeros((2, 2), np.int32)},
        {"pairs": None},
        {"words": np.frombuffer(b"\xff\xfe", np.uint8)},
        {"words": np.frombuffer(b"one", np.uint8)},
        {"word_counts": np.zeros(3, np.int64)},
    ],
)
def test_files_with_inconsistent_words_are_refused(fitted: TrainingResult, change: dict[str, Any]) -> None:
    data = to_bytes(fitted.model)
    reported = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = {name: tensor for name, tensor in {**load(data), **change}.items() if tensor is not None}
    with pytest.raises(Unfit) as refused:
        from_bytes(save(tensors, reported))
    assert refused.value.code == "bad_router_model"


def test_threshold_auroc_and_calibration_error() -> None:
    sure, right = np.array([0.9, 0.8, 0.7, 0.6], np.float32), np.array([True, True, False, True])
    assert threshold_for(sure, right, 0.99) == pytest.approx(0.75), "between the last right one and the first wrong one"
    assert threshold_for(sure, right, 0.7) == pytest.approx(0.3)
    assert threshold_for(sure, ~right, 0.99) > 1
    assert auroc(sure, np.array([0.65, 0.1], np.float32)) == pytest.approx(7 / 8)
    assert auroc(sure, sure[:0]) is None
    assert calibration_error(np.ones(4, np.float32), right) == pytest.approx(0.25)


@pytest.mark.long
def test_accuracy_by_letters_on_nineteen_public_intents() -> None:
    """All 150 with vectors take minutes, and are measured by the benchmark `routing`."""
    if not DATA.is_file():
        pytest.skip(f"missing data: {DATA}")
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    chosen = sorted(Counter(row["intent"] for row in rows if row["split"] == "train"))[::8]
    fit, held = (
        [Example(row["text"], row["intent"]) for row in rows if row["split"] == part and row["intent"] in chosen]
        for part in ("train", "val")
    )
    out = [Example(row["text"], OUT) for row in rows if row["split"] == "oos_train"]
    options, spelling = TrainingOptions(iterations=15, buckets=1 << 12), Spelling.of(e.text for e in (*fit, *out))
    found = train([*fit, *out], held, options=options, spelling=spelling)
    model, rng = found.model, Random(1)
    assert found.measured[0].accuracy >= 0.95
    assert found.measured[0].answered >= 0.9
    reported = (
        [model.predict(e.text) for e in held],
        [model.predict(recased(mistyped(e.text, rng), rng)) for e in held],
    )
    route, again = ([one.label if one.confidence >= one.threshold else None for one in these] for these in reported)
    assert np.mean([a == b for a, b in zip(route, again, strict=True)]) >= 0.92
