"""Several engines' own series in one text that Prometheus can read, with requests that wait in the gateway."""

import importlib.util
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runtime.gateway.views.engine_series import merged
from tests.docs.blocks import DOCS


def engine(model: str, running: int, waiting: int, tokens: int) -> str:
    registry = CollectorRegistry()
    labels = {"model_name": model, "engine": "0"}
    for name, value in (("vllm:num_requests_running", running), ("vllm:num_requests_waiting", waiting)):
        Gauge(name, "Of vLLM.", list(labels), registry=registry).labels(**labels).set(value)
    Counter("vllm:generation_tokens", "Of vLLM.", list(labels), registry=registry).labels(**labels).inc(tokens)
    Gauge("vllm:cache_config_info", "Of vLLM.", ["block_size"], registry=registry).labels("16").set(1)
    Gauge("vllm:bare", "Of vLLM.", registry=registry).set(3)
    Gauge("python_info", "Of the process.", registry=registry).set(1)
    return generate_latest(registry).decode()


def read(text: bytes) -> dict[tuple[str, str], float]:
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families), "a family is repeated"
    assert {family.name.partition(":")[0] for family in families} <= {"vllm"}
    return {(s.name, s.labels["model_name"]): s.value for family in families for s in family.samples}


def test_each_family_is_there_once_with_all_models() -> None:
    found = read(merged([engine("a", 2, 1, 7), engine("b", 1, 0, 5)], {"a": 3, "b": 0}))
    assert found == {
        ("vllm:num_requests_running", "a"): 2, ("vllm:num_requests_running", "b"): 1,
        ("vllm:num_requests_waiting", "a"): 4, ("vllm:num_requests_waiting", "b"): 0,
        ("vllm:generation_tokens_total", "a"): 7, ("vllm:generation_tokens_total", "b"): 5,
        ("vllm:cache_config_info", "a"): 1, ("vllm:cache_config_info", "b"): 1,
        ("vllm:bare", "a"): 3, ("vllm:bare", "b"): 3,
    }  # fmt: skip


def test_a_model_that_is_not_loaded_has_its_waiting_requests() -> None:
    found = read(merged(["", engine("b", 1, 0, 5)], {"a": 3, "b": 0}))
    assert found[("vllm:num_requests_running", "a")] == 0
    assert found[("vllm:num_requests_waiting", "a")] == 3


def vllm_names() -> set[str]:
    """Return vLLM's series from its source, because they are registered only when an engine runs."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    names = set(re.findall(r'name ?= ?"(vllm:\w+)"', source))
    return names | {f"{name}_total" for name in names} | {f"{name}_bucket" for name in names}


def test_the_series_for_dashboards_and_autoscalers_are_vllms() -> None:
    named = set(re.findall(r"`(vllm:\w+)`", (DOCS / "monitor.md").read_text())) - {"vllm:lora_requests_info"}
    assert len(named) > 8
    assert {name.replace("_seconds", "_seconds_bucket") for name in named} <= vllm_names()
