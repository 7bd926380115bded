"""adapter_config.json: the modules that it targets, and bounds on its patterns."""

import json
from typing import Any

import pytest

from adapters.content.config import AdapterConfig, read_config
from adapters.content.faults import Faults
from registry.bounds import Bounds

Q, UP, Q1 = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"


def read(bounds: Bounds | None = None, **settings: Any) -> tuple[AdapterConfig | None, list[str]]:
    usual = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    faults = Faults()
    config, _ = read_config(json.dumps(usual | settings).encode(), bounds or Bounds(), faults)
    return config, faults.sentences()


@pytest.mark.parametrize(
    ("settings", "targeted"),
    [
        ({}, {Q, Q1}),
        ({"target_modules": "q_proj"}, set()),
        ({"target_modules": r".*\.q_proj"}, {Q, Q1}),
        ({"target_modules": "all-linear"}, {Q, Q1, UP}),
        ({"target_modules": "ALL-LINEAR", "exclude_modules": ["q_proj"]}, {UP}),
        ({"target_modules": "all-linear", "exclude_modules": r".*\.0\..*"}, {Q1}),
        ({"layers_to_transform": 1}, {Q1}),
        ({"layers_to_transform": [0, 2]}, {Q}),
        ({"target_modules": [Q, "up_proj"], "layers_to_transform": [1]}, {Q}),
        ({"target_modules": r".*\.q_proj", "layers_to_transform": [1]}, {Q1}),
    ],
)
def test_modules_are_targeted_as_peft_does(settings: dict[str, Any], targeted: set[str]) -> None:
    config, faults = read(**settings)
    assert config is not None, faults
    assert {module for module in (Q, UP, Q1) if config.targets(module)} == targeted


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank_pattern": {"a": 1, "b": 1}, "alpha_pattern": {"a": 1.0}}, "more than 2 entries"),
        ({"target_modules": "x" * 1001}, "longer than 1000 characters"),
        ({"exclude_modules": "("}, "'(' is not a usable pattern"),
        ({"alpha_pattern": {"(": 1.0}}, "'(' is not a usable pattern"),
    ],
)
def test_patterns_are_bounded_and_valid(settings: dict[str, Any], words: str) -> None:
    config, faults = read(Bounds(adapter_patterns=2), **settings)
    assert config is None
    assert words in " ".join(faults)


def test_patterns_may_reach_their_bounds() -> None:
    config, faults = read(Bounds(adapter_patterns=2), rank_pattern={"a": 1}, alpha_pattern={"b": 1.0},
                          target_modules="x" * 1000)  # fmt: skip
    assert (config is not None, faults) == (True, [])


def test_a_config_that_is_nested_too_deeply_is_not_json() -> None:
    faults = Faults()
    assert read_config(b"[" * 200_000, Bounds(), faults) == (None, [])
    assert "is not JSON" in faults.sentences()[0]
