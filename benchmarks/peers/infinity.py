"""The peer `infinity-emb` with the same weights, from its own environment (`scripts/install-clients infinity`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.report.environment import ROOT

PROGRAM = ROOT / ".venv-infinity" / "bin" / "infinity_emb"


class Infinity(Server):
    """`infinity_emb v2` with some models.

    Uses its torch engine, in float32 like Roundhouse, without BetterTransformer, whose library its pins lack.

    Args:
        models: folders by the name in requests.
    """

    def __init__(self, models: Mapping[str, Path], folder: Path) -> None:
        super().__init__("infinity-emb", "unused", folder)
        self._models = models

    def command(self) -> Sequence[str]:
        words = [str(PROGRAM), "v2", "--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"]
        words += ["--url-prefix", "/v1"]
        for name, path in self._models.items():
            words += ["--model-id", str(path), "--served-model-name", name, "--engine", "torch", "--device", "cpu"]
            words += ["--no-bettertransformer", "--no-model-warmup", "--dtype", "float32"]
        return words

    def variables(self) -> Mapping[str, str]:
        return {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def installed() -> bool:
    """Return whether its environment is installed."""
    return PROGRAM.exists()
