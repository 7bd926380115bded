"""The stages of a routing decision."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from registry.errors import BadRequest, Forbidden, Unavailable
from registry.recipes.router import RouterSpec, RouterTarget
from routing.decide import decide
from routing.decision import Facts, Features, TargetFacts
from routing.intents.acceptance import JudgedText, chosen, curve, train_acceptance, with_thresholds
from routing.intents.model import OUT, IntentModel
from routing.intents.training import Example, TrainingOptions, letters_head, train
from routing.routers import content
from routing.routers.content import Router

HERE = TargetFacts(price=1.0)


def router(**more: Any) -> Router:
    intents, complexity = more.pop("fitted", None), more.pop("acceptance", None)
    spec = RouterSpec.model_validate(
        {"id": "r", "targets": [{"name": "small"}, {"name": "big"}, {"name": "away"}], "default": "small", **more}
    )
    return Router(spec, "v3", intents=intents, complexity=complexity)


def facts(previous: str | None = None, **targets: TargetFacts) -> Facts:
    known = {"small": HERE, "big": TargetFacts(price=5.0), "away": TargetFacts(is_local=False, price=9.0)}
    return Facts({**known, **targets}, previous)


@pytest.fixture(scope="module")
def fitted() -> IntentModel:
    texts = {
        "weather": "will it {} tomorrow in {}", "money": "send {} euros to {}", OUT: "the {} of {}",
    }  # fmt: skip
    words = ("rain", "snow", "hail", "storm", "wind", "fog", "frost", "sun", "sleet", "ten", "twenty", "forty", "fifty")
    places = ("rome", "oslo", "lima", "cairo", "delhi", "anna", "bert", "carl", "dora", "emil")
    examples = [Example(form.format(w, p), label) for label, form in texts.items() for w in words for p in places]
    return train(examples[::2], examples[1::2], options=TrainingOptions(iterations=30, typos=False)).model


def test_a_rule_that_names_a_target_ends_the_stages(fitted: IntentModel) -> None:
    rules = [
        {"name": "inside", "when": {"team": ["legal"]}, "stay_inside": True},
        {"name": "long", "when": {"longer_than": 100}, "to": ["big"]},
        {"name": "gold", "when": {"headers": {"x-tier": "^gold$"}}, "to": ["away"]},
    ]
    made = router(rules=rules, fitted=fitted, intents={"routes": {"weather": ["big"]}})
    assert decide(Features(characters=101), made, facts()).reason == "rule:long"
    assert decide(Features(characters=100), made, facts()).target == "small"
    gold = Features(headers={"x-tier": "gold"})
    assert decide(gold, made, facts()).target == "away"
    assert decide(Features(headers={"x-tier": "golden"}), made, facts()).target == "small"
    inside = decide(Features(team="legal", headers={"x-tier": "gold"}), made, facts())
    assert (inside.target, inside.saw["not:away"]) == ("small", "not on this machine")


def test_stay_inside_applies_whichever_rule_decides() -> None:
    """An earlier rule does not send requests to other servers that a later rule keeps on this machine."""
    rules = [
        {"name": "tools", "when": {"tools": True}, "to": ["away", "big"]},
        {"name": "legal", "when": {"team": ["legal"]}, "to": ["small"], "stay_inside": True},
    ]
    made = router(rules=rules, fallbacks=["away"])
    assert decide(Features(tools=True), made, facts(big=TargetFacts(waiting=9))).target == "away"
    legal = decide(Features(tools=True, team="legal"), made, facts(big=TargetFacts(waiting=9), previous="away"))
    assert (legal.target, legal.reason, legal.fallbacks) == ("big", "rule:tools", ())


def test_rules_match_features_of_requests() -> None:
    for name, features in {
        "tools": Features(tools=True),
        "json_schema": Features(json_schema=True),
        "images": Features(images=True),
    }.items():
        made = router(rules=[{"name": name, "when": {name: True}, "to": ["big"]}])
        able = facts(big=TargetFacts(takes_images=True))
        assert decide(features, made, able).reason == f"rule:{name}"
        assert decide(Features(), made, able).reason == "default"
    for when, features in (
        ({"endpoint": ["/v1/messages"]}, Features(endpoint="/v1/messages")),
        ({"service_class": ["batch"]}, Features(service_class="batch")),
        ({"shorter_than": 1}, Features()),
    ):
        made = router(rules=[{"name": "it", "when": when, "to": ["big"]}])
        assert decide(features, made, facts()).reason == "rule:it"
        assert decide(Features(characters=5), made, facts()).reason == "default"
    german = router(rules=[{"name": "de", "when": {"language": ["de"]}, "to": ["big"]}])
    assert decide(Features("Bitte sag mir, wie spät es gerade ist"), german, facts()).target == "big"
    assert decide(Features("Please tell me how late it is now"), german, facts()).target == "small"
    assert decide(Features(language="de"), german, facts()).target == "big", (
        "the language that a recording's request names"
    )
    nothing = router(rules=[{"name": "af", "when": {"language": ["af"]}, "to": ["big"]}])
    assert decide(Features(), nothing, facts()).target == "small", "an empty text has no language"


def test_the_language_of_a_text_is_detected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 rules detected the language again each, which blocked the event loop for 80 ms."""
    received = list[str]()
    monkeypatch.setattr(content, "language", lambda text: received.append(text) or "en")
    made = router(rules=[{"name": f"r{n}", "when": {"language": ["de"]}, "to": ["big"]} for n in range(200)])
    assert decide(Features("a text"), made, facts()).target == "small"
    assert received == ["a text"]


def test_an_expensive_pattern_takes_linear_time() -> None:
    made = router(rules=[{"name": "evil", "when": {"headers": {"x-a": "^(a+)+$"}}, "to": ["big"]}])
    assert (
        decide(Features(headers={"x-a": "a" * 5000 + "!"}), made, facts()).target == "big"
    )  # cut after 1,024 characters
    assert decide(Features(headers={"x-a": "a" * 1000 + "!"}), made, facts()).target == "small"


def test_an_intent_decides_above_its_threshold(fitted: IntentModel) -> None:
    made = router(fitted=fitted, intents={"routes": {"weather": ["big"], "money": ["away"]}})
    sure = decide(Features("will it rain tomorrow in lima"), made, facts())
    assert (sure.target, sure.reason, sure.saw["features"]) == ("big", "intent:weather", "letters")
    assert sure.score is not None
    assert sure.score > 0.9
    assert list(sure.scores) == sorted(sure.scores, key=lambda label: -sure.scores[label])
    assert set(sure.scores) == {"weather", "money"}
    unsure = decide(Features("qqq zzz"), made, facts())
    assert (unsure.target, unsure.reason) == ("small", "abstained")
    strict = router(fitted=fitted, intents={"routes": {"weather": ["big"]}, "threshold": 1.0})
    assert decide(Features("will it rain tomorrow in lima"), strict, facts()).reason == "abstained"
    gone = decide(Features("will it rain tomorrow in lima"), made, facts(big=TargetFacts(False, "model_not_found")))
    assert (gone.target, gone.saw["passed:intent weather"]) == ("small", "big cannot answer")


def test_a_vector_of_another_size_is_ignored(fitted: IntentModel) -> None:
    made = router(fitted=fitted, intents={"routes": {"weather": ["big"]}})
    text = "will it rain tomorrow in lima"
    assert decide(Features(text, vector=np.ones(7, np.float32)), made, facts()) == decide(Features(text), made, facts())


def test_a_head_uses_only_vectors_of_its_own_embedding_model(fitted: IntentModel) -> None:
    """Vectors of another model may have the same size, but are meaningless to it."""
    judged = [JudgedText(f"{word} {n}", {"small": good, "big": 1 - good}) for word, good in
              (("rain", 1.0), ("euro", 0.0)) for n in "uvwxyz"]  # fmt: skip
    vectors = np.random.default_rng(1).normal(size=(len(judged), 8)).astype(np.float32)
    acceptance = train_acceptance(judged, vectors, "one")
    mine = replace(fitted, heads=replace(fitted.heads, embedding="other"))
    assert router(acceptance=acceptance, complexity={}).embedding == "one"
    assert router(fitted=mine, intents={"embedding": "other"}).embedding == "other"
    assert router(fitted=mine, intents={"embedding": "another"}).embedding is None
    both = router(fitted=mine, acceptance=acceptance, intents={"threshold": 1.0}, complexity={})
    text = "rain in lima"
    assert both.embedding == "other"
    scores = decide(Features(text, vector=vectors[0]), both, facts()).scores
    assert (scores["small"], scores["big"]) == tuple(
        pytest.approx(acceptance.expected(text)[name], abs=1e-4) for name in ("small", "big")
    )


def test_a_head_fitted_for_another_embedding_model_uses_it(fitted: IntentModel) -> None:
    """The definition names the new model. Heads that are not fitted for it yet use only letters."""
    examples = [Example(f"{word} {n}", word) for word in ("rain", "euro") for n in "uvwxyz"]
    vectors = np.random.default_rng(2).normal(size=(len(examples), 8)).astype(np.float32)
    old = train(examples, examples, (vectors, vectors), "old", TrainingOptions(iterations=30, typos=False)).model
    judged = [
        JudgedText(one.text, {"small": float(one.label == "rain"), "big": float(one.label == "euro")})
        for one in examples
    ]
    new = train_acceptance(judged, vectors, "new")
    made = router(fitted=old, acceptance=new, intents={"embedding": "new", "threshold": 1.0}, complexity={})
    assert made.embedding == "new"
    decided = decide(Features("rain u", vector=vectors[0]), made, facts())
    assert decided.saw["features"] == "letters"
    assert decided.scores["small"] == pytest.approx(new.expected("rain u", vectors[0])["small"], abs=1e-4)


def test_a_conversation_keeps_its_target_until_that_is_removed(fitted: IntentModel) -> None:
    made = router(fitted=fitted, intents={"routes": {"weather": ["big"]}})
    weather = Features("will it rain tomorrow in lima")
    assert decide(weather, made, facts(previous="away")).reason == "conversation"
    assert decide(weather, made, facts(previous="away")).previous is None
    gone = decide(weather, made, facts(previous="away", away=TargetFacts(False, "model_not_found")))
    assert (gone.target, gone.previous, gone.saw["left"]) == ("big", "away", "away: model_not_found")
    assert (gone.full_reason, gone.score) == ("intent:weather,left", gone.scores["weather"])
    assert decide(weather, made, facts(previous="older")).saw["left"] == "older: no longer a target"
    tools = router(rules=[{"name": "tools", "when": {"tools": True}, "to": ["big"]}])
    by_rule = decide(Features(tools=True), tools, facts(previous="small"))
    assert (by_rule.full_reason, by_rule.saw["left"]) == ("rule:tools,left", "small: rule:tools")


def test_the_cheapest_target_that_is_good_enough_is_chosen() -> None:
    judged = [
        JudgedText(f"{kind} question number {n}", {"small": float(kind == "easy"), "big": float(n % 9 > 0)})
        for kind in ("easy", "hard")
        for n in range(60)
    ]
    model = train_acceptance(judged)
    made = router(acceptance=model, complexity={"threshold": 0.6}, default=None)
    easy, hard = (decide(Features(f"{kind} question number 7"), made, facts()) for kind in ("easy", "hard"))
    assert (easy.target, easy.reason) == ("small", "enough:small")
    assert (hard.target, hard.reason) == ("big", "enough:big")
    fitted = router(acceptance=with_thresholds(model, 0.6), complexity={}, default=None)
    assert decide(Features("hard question number 7"), fitted, facts()).reason == "enough:big"
    assert fitted.threshold == 0.6
    none = router(acceptance=model, complexity={"threshold": 1.0}, default=None)
    assert decide(Features("hard question number 7"), none, facts()).reason == "best:big"


def test_without_information_the_share_of_accepted_answers_is_expected() -> None:
    judged = [JudgedText("same", {"good": float(n % 10 > 0), "bad": float(n % 10 == 0)}) for n in range(100)]
    model = train_acceptance(judged, np.zeros((100, 8), np.float32), "vectors")
    vector = np.zeros(8, np.float32)
    for expected in (model.expected("same", None), model.expected("same", vector)):
        assert expected["good"] == pytest.approx(0.9, abs=0.05)
        assert expected["bad"] == pytest.approx(0.1, abs=0.05)


def test_the_chosen_threshold_is_the_cheapest_that_loses_at_most_a_hundredth() -> None:
    judged = [
        JudgedText(f"{kind} question number {n}", {"small": float(kind == "easy"), "big": float(n % 9 > 0)})
        for kind in ("easy", "hard")
        for n in range(60)
    ]
    points = curve(train_acceptance(judged), judged, None, {"small": 1.0, "big": 5.0})
    assert (points[0].threshold, points[-1].threshold) == (0.0, 1.0)
    assert points[0].price == 1.0
    assert points[0].accepted == 0.5
    best = chosen(points)
    assert best.accepted >= max(point.accepted for point in points) - 0.01
    assert best.price == pytest.approx(3.0), "the large model answers only the hard questions"
    assert best.shares == {"small": 0.5, "big": 0.5}


def test_letters_and_vectors_have_thresholds_of_their_own() -> None:
    """Without a vector, letters decide by their own threshold, because their scores have another scale."""
    rng = np.random.default_rng(1)
    judged = [JudgedText(f"question {n}", {"small": float(n % 2), "big": 1.0 - float(n % 7 == 0)}) for n in range(60)]
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    model = with_thresholds(train_acceptance(judged, vectors, "vectors"), 0.0, 1.0)
    made = router(acceptance=model, complexity={}, default=None)
    reported = [decide(Features("question 7", vector=vector), made, facts()) for vector in (None, vectors[0])]
    assert [decision.reason.partition(":")[0] for decision in reported] == ["enough", "best"]
    assert [decision.saw["complexity"] for decision in reported] == [
        f"expected acceptance, threshold {threshold}" for threshold in ("0.000", "1.000")
    ]


def test_each_targets_head_equals_one_fitted_on_its_own_rows() -> None:
    """All targets share the weights of pieces of text, whichever rows each of them has."""
    judged = [
        JudgedText(f"{word} {n}", {"big": float(n % 3 > 0), **({"small": float(word == "easy")} if n < 20 else {})})
        for n in range(130)
        for word in ("easy", "hard")
    ]
    letters = train_acceptance(judged).heads.letters
    rows = [Example(one.text, "yes" if one.accepted["small"] else "no") for one in judged if "small" in one.accepted]
    idf = letters.idf.astype(np.float64)
    alone = letters_head(rows, ["no", "yes"], TrainingOptions(buckets=len(idf), typos=False), idf)
    for text in ("easy 7", "hard 90", "neither"):
        no, yes = alone.logits(text)
        assert letters.logits(text)[1] == pytest.approx(yes - no, abs=0.02)


def test_state_counts_before_price_and_price_before_order() -> None:
    free = router(default=None)
    assert decide(Features(), free, facts()).target == "small"
    assert decide(Features(), free, facts(small=TargetFacts(is_resident=False))).target == "big"
    assert decide(Features(), free, facts(small=TargetFacts(waiting=3))).target == "big"
    assert decide(Features(), free, facts(small=TargetFacts(within_budget=False))).target == "big"
    assert decide(Features(), free, facts()).alternatives == ("big", "away")


def shared(*weights: float, **more: Any) -> Router:
    names = ("small", "big", "away")
    targets = [{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    return router(default=None, targets=targets, **more)


def drawn(made: Router, of: Facts, count: int = 100) -> dict[str, int]:
    """Return how many of evenly spread draws each target gets, and check that the weights decided."""
    decisions = [decide(Features(draw=number / count), made, of) for number in range(count)]
    assert {decision.reason for decision in decisions} == {"weight"}
    return dict(Counter(decision.target for decision in decisions))


def test_weights_share_what_state_would_decide() -> None:
    busy = facts(small=TargetFacts(is_resident=False, waiting=9, price=99))
    assert drawn(shared(95, 5, 0), busy) == {"small": 95, "big": 5}
    assert drawn(shared(0.5, 0.25, 0.25), facts()) == {"small": 50, "big": 25, "away": 25}
    canary = decide(Features(draw=0.97), shared(95, 5, 0), busy)
    assert (canary.target, canary.alternatives) == ("big", ("away", "small"))
    assert (canary.saw["weights"], canary.saw["draw"]) == ("small 95, big 5", "0.9700")
    assert decide(Features(draw=1.0), shared(95, 5, 0), busy).target == "big"
    assert decide(Features(draw=0.97), shared(0, 0, 0), facts()).reason == "state"


def test_a_larger_weight_of_the_last_target_keeps_its_earlier_draws() -> None:
    draws = [number / 1000 for number in range(1000)]
    of = [{draw for draw in draws if decide(Features(draw=draw), shared(100 - part, part, 0), facts()).target == "big"}
          for part in (5, 20, 50)]  # fmt: skip
    assert of[0] < of[1] < of[2]


def test_weights_share_among_the_targets_that_are_left() -> None:
    gone, dear = TargetFacts(False, "model_not_found"), TargetFacts(within_budget=False)
    assert drawn(shared(90, 5, 5), facts(small=gone)) == {"big": 50, "away": 50}
    assert drawn(shared(90, 5, 5), facts(small=dear)) == {"big": 50, "away": 50}
    assert drawn(shared(90, 10, 0), facts(small=dear, big=dear, away=dear)) == {"small": 90, "big": 10}
    last = decide(Features(), shared(90, 10, 0), facts(small=gone, big=gone))
    assert (last.target, last.reason) == ("away", "state"), "without a weight, and the last one"
    assert decide(Features(), shared(90, 10, 0), facts(small=dear, big=dear)).target == "away"
    hidden = decide(Features(draw=0.9), shared(90, 5, 5), facts(big=TargetFacts(False, "x", is_allowed=False)))
    assert (hidden.target, "big" in str(hidden.saw)) == ("small", False)


def test_earlier_stages_decide_before_weights() -> None:
    rules = [{"name": "tools", "when": {"tools": True}, "to": ["big", "away"]},
             {"name": "long", "when": {"longer_than": 9}, "to": ["away"]}]  # fmt: skip
    made = shared(98, 1, 1, rules=rules, fallbacks=["small"])
    by_rule = [decide(Features(tools=True, draw=draw), made, facts()) for draw in (0.4, 0.6)]
    assert [(one.target, one.reason, one.fallbacks) for one in by_rule] == [
        ("big", "rule:tools", ("small",)), ("away", "rule:tools", ("small",)),
    ]  # fmt: skip
    alone = decide(Features(characters=10), made, facts())
    assert (alone.target, alone.reason, alone.saw.get("weights")) == ("away", "rule:long", None)
    kept = decide(Features(draw=0.1), made, facts(previous="away"))
    assert (kept.target, kept.reason) == ("away", "conversation")
    left = decide(Features(draw=0.1), made, facts(previous="away", away=TargetFacts(False, "model_not_found")))
    assert (left.target, left.full_reason) == ("small", "weight,left")
    with_default = router(targets=[{"name": "small"}, {"name": "big", "weight": 5}])
    assert decide(Features(draw=0.99), with_default, facts()).reason == "default"


@pytest.mark.parametrize("weight", [-1, 1e7, float("inf"), float("nan"), "many"])
def test_a_weight_is_a_number_that_is_not_negative(weight: Any) -> None:
    with pytest.raises(ValidationError):
        RouterTarget.model_validate({"name": "small", "weight": weight})


def test_fallbacks_are_in_the_routers_order_and_respect_stay_inside() -> None:
    made = router(fallbacks=["away", "big", "small", "away"])
    assert decide(Features(), made, facts()).fallbacks == ("away", "big")
    assert decide(Features(), router(fallbacks=["away", "big"], stay_inside=True), facts()).fallbacks == ("big",)


def test_the_error_without_a_target_lists_the_reasons() -> None:
    made = router()
    with pytest.raises(Unavailable, match=r"small: does not accept images.*away: model_not_found") as refused:
        decide(Features(images=True), made, facts(away=TargetFacts(False, "model_not_found")))
    assert refused.value.code == "no_route"


def test_a_request_with_tools_goes_to_a_target_that_calls_them() -> None:
    able = facts(small=TargetFacts(calls_tools=False))
    assert decide(Features(), router(), able).target == "small"
    chosen = decide(Features(tools=True), router(), able)
    assert (chosen.target, chosen.saw["not:small"]) == ("big", "does not call tools")


@pytest.mark.parametrize(
    ("features", "away", "param"),
    [
        (Features(tools=True), {"calls_tools": False}, "tools"),
        (Features(images=True), {}, None),
        (Features(images=True, tools=True), {"takes_images": True, "calls_tools": False}, "tools"),
    ],
)
def test_what_no_target_ever_takes_is_the_clients_fault(
    features: Features, away: dict[str, bool], param: str | None
) -> None:
    """It was a 503 with Retry-After, so that clients repeated it for ever."""
    unable = dict.fromkeys(("small", "big"), TargetFacts(calls_tools=False))
    with pytest.raises(BadRequest, match=r"Router 'r' (does not support tools|takes no images): leave") as refused:
        decide(features, router(), facts(**unable, away=TargetFacts(**away)))
    assert (refused.value.code, refused.value.param) == ("unsupported_value", param)
    with pytest.raises(Unavailable, match="away: model_unavailable"):  # it may answer later
        decide(features, router(), facts(**unable, away=TargetFacts(False, "model_unavailable")))


def test_a_target_that_the_key_may_not_use_is_not_revealed() -> None:
    made, hidden = router(), TargetFacts(False, "model_not_allowed", is_allowed=False)
    with pytest.raises(BadRequest, match="small: does not accept images") as refused:
        decide(Features(images=True), made, facts(away=hidden))
    assert "away" not in refused.value.message
    ruled = router(rules=[{"name": "r", "to": ["away"]}])
    assert "away" not in str(decide(Features(), ruled, facts(away=hidden)).saw)
    with pytest.raises(Forbidden, match="may not use") as nothing:
        decide(Features(), made, facts(small=hidden, big=hidden, away=hidden))
    assert nothing.value.code == "model_not_allowed"
