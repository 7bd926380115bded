"""The peer `litellm`, a proxy in front of a server of ours, from its own environment (`scripts/install-litellm`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.peers.servers import Server
from benchmarks.report.environment import ROOT

PROGRAM = ROOT / ".venv-litellm" / "bin" / "litellm"
KEY = "sk-of-the-benchmark"


class LiteLLM(Server):
    """`litellm --config` with one worker, a master key and no database: it checks the key and passes on."""

    health = "/health/readiness"

    def __init__(self, behind: Server, folder: Path) -> None:
        super().__init__("litellm", behind.model, folder)
        self._behind = behind

    def command(self) -> Sequence[str]:
        params = {
            "model": f"openai/{self.model}",
            "api_base": f"http://127.0.0.1:{self._behind.port}/v1",
            "api_key": "none",
        }
        config = {
            "model_list": [{"model_name": self.model, "litellm_params": params}],
            "general_settings": {"master_key": KEY},
            "litellm_settings": {"telemetry": False},
        }
        file = self.folder / "litellm.yaml"
        file.write_text(yaml.safe_dump(config))
        return [
            str(PROGRAM),
            "--config",
            str(file),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--num_workers",
            "1",
        ]

    def variables(self) -> Mapping[str, str]:
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_PROXY": "*"}

    def asked(self, request: bytes) -> bytes:
        """With the key."""
        line, rest = request.split(b"\r\n", 1)
        return line + f"\r\nAuthorization: Bearer {KEY}\r\n".encode() + rest


def installed() -> bool:
    """Whether its environment is there."""
    return PROGRAM.exists()
