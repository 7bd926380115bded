"""The peer LiteLLM proxy in front of one server, from its own environment (`scripts/install-clients routing`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.report.environment import ROOT

PROGRAM = ROOT / ".venv-routing" / "bin" / "litellm"


class LiteLlm(Server):
    """The proxy in front of one server.

    Args:
        url: base URL, with `/v1`, of an OpenAI-compatible server that has `model`.
    """

    health = "/health/liveliness"

    def __init__(self, model: str, url: str, folder: Path) -> None:
        super().__init__("litellm", model, folder)
        self._url = url

    def command(self) -> Sequence[str]:
        target = {"model": f"openai/{self.model}", "api_base": self._url, "api_key": "none"}
        config = {
            "model_list": [{"model_name": self.model, "litellm_params": target}],
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},  # no keys, like Roundhouse here
        }
        file = self.folder / "litellm.yaml"
        file.write_text(json.dumps(config))  # JSON is valid YAML
        return [str(PROGRAM), "--config", str(file), "--host", "127.0.0.1", "--port", str(self.port)]

    def variables(self) -> Mapping[str, str]:
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}


def installed() -> bool:
    """Return whether its environment is installed."""
    return PROGRAM.exists()
