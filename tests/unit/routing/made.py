"""Routers with every stage, and random requests in every API."""

from random import Random
from typing import Any

import numpy as np

from registry.recipes.router import RouterSpec
from routing.intents.training import Example, TrainingOptions, train
from routing.routers.content import Router

WORDS = ("rain", "snow", "euros", "lima", "rome", "send", "will", "it", "the", "tomorrow", "ten", "of")
CHAT, MESSAGES, RESPONSES, COMPLETIONS = (
    f"/v1/{name}" for name in ("chat/completions", "messages", "responses", "completions")
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def routers() -> list[Router]:
    rng = Random(3)
    forms = (("weather", "will it {} tomorrow in {}"), ("money", "send {} to {}"), ("-", "the {} of {}"))
    examples = [Example(form.format(a, b), label) for label, form in forms for a in WORDS for b in WORDS]
    rng.shuffle(examples)
    vectors = np.random.default_rng(1).normal(size=(len(examples), 8)).astype(np.float32)
    half = len(examples) // 2
    fitted = train(
        examples[:half], examples[half:], (vectors[:half], vectors[half:]), "vectors", TrainingOptions(iterations=15)
    ).model
    targets = [{"name": "small", "price": 1}, {"name": "big", "price": 3}, {"name": "cold"}, {"name": "away"}]
    rules = [
        {"name": "gold", "when": {"headers": {"x-plan": "gold|silver"}}, "to": ["big", "away"]},
        {"name": "patient", "when": {"service_class": ["batch"]}, "to": ["cold", "small"]},
        {"name": "schema", "when": {"json_schema": True}, "stay_inside": True},
        {"name": "tools", "when": {"tools": True}, "to": ["away", "cold"]},
        {"name": "long", "when": {"longer_than": 120}, "to": ["cold"]},
    ]
    intents = {"routes": {"weather": ["small", "big"], "money": ["away"]}, "embedding": "vectors"}
    specs = (
        {"rules": rules, "intents": intents, "default": "small", "fallbacks": ["away", "big"]},
        {"intents": {**intents, "threshold": 0.3}, "stay_inside": True},
        {"rules": rules[:1]},
    )
    made = [RouterSpec.model_validate({"id": f"r{n}", "targets": targets, **spec}) for n, spec in enumerate(specs)]
    return [Router(spec, intents=fitted if spec.intents else None) for spec in made]


def body(rng: Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice((CHAT, MESSAGES, RESPONSES, COMPLETIONS))
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 30))) for _ in range(rng.choice((1, 1, 2, 3)))]
    turns: list[dict[str, Any]] = []
    for text in texts:
        parts = [{"type": "text", "text": text}, *([IMAGE] if rng.random() < 0.1 else [])]
        turns += [{"role": "user", "content": parts if rng.random() < 0.5 else text}]
        turns += [{"role": "assistant", "content": "yes"}]
    found: dict[str, Any] = {"model": "r", "user": rng.choice(("", "anna", None))}
    if rng.random() < 0.2:
        found["tools"] = [{"type": "function"}]
    for name, words in (("service_tier", ("flex", "priority", "auto")), ("x-tier", ("batch", "interactive"))):
        if rng.random() < 0.2:
            found[name] = rng.choice(words)
    if rng.random() < 0.2:
        found["response_format"] = {"type": rng.choice(("text", "json_schema"))}
    stated = {CHAT: {"messages": turns[:-1]}, MESSAGES: {"system": "be kind", "messages": turns[:-1]},
            RESPONSES: {"input": turns[:-1]}, COMPLETIONS: {"prompt": texts[0]}}  # fmt: skip
    return path, {**found, **stated[path]}
