"""The peer LiteLLM proxy, from an environment of its own (`scripts/install-clients routing`), before one server."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.report.environment import ROOT

PROGRAM = ROOT / ".venv-routing" / "bin" / "litellm"


class LiteLlm(Server):
    """Args:
    url: of an OpenAI-compatible server, with `/v1`, which has `model`.
    """

    health = "/health/liveliness"

    def __init__(self, model: str, url: str, folder: Path) -> None:
        super().__init__("litellm", model, folder)
        self._url = url

    def command(self) -> Sequence[str]:
        there = {"model": f"openai/{self.model}", "api_base": self._url, "api_key": "none"}
        config = {
            "model_list": [{"model_name": self.model, "litellm_params": there}],
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},  # no keys, as what stands beside
        }
        file = self.folder / "litellm.yaml"
        file.write_text(json.dumps(config))  # YAML takes JSON
        return [str(PROGRAM), "--config", str(file), "--host", "127.0.0.1", "--port", str(self.port)]

    def variables(self) -> Mapping[str, str]:
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}


def installed() -> bool:
    """Whether its environment is there."""
    return PROGRAM.exists()
