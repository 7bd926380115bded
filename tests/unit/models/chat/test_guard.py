"""Typical decoding is refused where the engine cannot do it, and where its values mean nothing."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat.requests import guard
from models.chat.vllm import launch
from registry.errors import BadRequest


def body(**extra: Any) -> bytes:
    return json.dumps({"prompt": "x", "vllm_xargs": extra}).encode()


@pytest.mark.parametrize(
    "extra",
    [{"typical_p": 0.5}, {"typical_p": 1}, {"typical_p": 0.5, "typical_top_p": 0.9, "typical_top_k": 0, "k": "v"}],
)
def test_an_engine_that_can_takes_it(extra: Any) -> None:
    guard.typical(body(**extra), able=True)


def test_one_that_cannot_refuses_what_would_change_the_answer() -> None:
    guard.typical(body(typical_p=1.0, other=3), able=False)
    guard.typical(b'{"prompt": "typical_p of this text"}', able=False)
    guard.typical(b'{"temperature": 0.0, "vllm_xargs": {"typical_p": 0.95}}', able=False)  # greedy: without effect
    with pytest.raises(BadRequest, match="set it to null") as refused:
        guard.typical(body(typical_p=0.5), able=False)
    assert (refused.value.param, refused.value.code) == ("typical_p", "unsupported_value")


@pytest.mark.parametrize(
    "extra",
    [
        {"typical_p": 0}, {"typical_p": 1.1}, {"typical_p": "0.5"}, {"typical_p": True}, {"typical_p": [0.5]},
        {"typical_top_p": 0}, {"typical_top_k": -1}, {"typical_top_k": 2.5}, {"typical_top_k": 2**31},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("able", [True, False])
def test_values_that_mean_nothing_are_refused(extra: Any, able: bool) -> None:
    with pytest.raises(BadRequest, match="vllm_xargs"):
        guard.typical(body(**extra), able=able)


@pytest.mark.parametrize(
    ("reached", "constrained", "code"),
    [(False, False, "unprocessable_request"), (True, True, "unsatisfiable_constraint"), (True, False, None)],
)
def test_what_a_failure_of_a_living_engine_means(reached: bool, constrained: bool, code: str | None) -> None:
    fault = guard.explain_failure(reached_engine=reached, constrained=constrained)
    assert (fault and fault.code) == code


@pytest.mark.parametrize(
    ("config", "able"),
    [
        ({"use_v2_model_runner": False, "speculative_config": None}, True),
        ({"use_v2_model_runner": True, "speculative_config": None}, True),
        ({"use_v2_model_runner": False, "speculative_config": object()}, False),
        ({"use_v2_model_runner": True, "speculative_config": object()}, False),
    ],
)
@pytest.mark.parametrize("own", [None, ["a:B"]])
def test_which_engines_can(config: Any, own: Any, able: bool) -> None:
    """The second runner is given what the first one has from the plug-in, beside the user's own."""
    made = SimpleNamespace(**config, model_config=SimpleNamespace(logits_processors=own))
    if config["use_v2_model_runner"]:
        assert not launch.samples_typically(SimpleNamespace(vllm_config=made))
    launch._sample_typically(made)
    assert launch.samples_typically(SimpleNamespace(vllm_config=made)) is able
    given = config["use_v2_model_runner"] and able
    assert made.model_config.logits_processors == ([*(own or []), launch.TYPICAL_V2] if given else own)
