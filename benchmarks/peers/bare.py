"""The bare-library peer as a server that the harness starts, and the starter models to compare it on."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.report.environment import ROOT
from registry.errors import Unfit
from registry.files.sources import locate
from registry.recipes.fields import HubSource
from registry.recipes.loading import load_recipes

STARTER = ROOT / "recipes" / "starter"


class Bare(Server):
    """`benchmarks.peers.bare_handler` with some models.

    Args:
        models: folders by kind (embed, rerank, speech).
        speech_recipe: the recipe whose window of audio to use.
    """

    def __init__(
        self, models: dict[str, Path], folder: Path, speech_recipe: Path = STARTER / "starter-speech.yaml"
    ) -> None:
        super().__init__("bare library", "unused", folder)
        self._models, self._speech_recipe = models, speech_recipe

    def command(self) -> Sequence[str]:
        words = [sys.executable, "-m", "benchmarks.peers.bare_handler", "--port", str(self.port)]
        if "speech" in self._models:
            words += ["--speech-window", str(load_recipes(self._speech_recipe)[0].window.seconds)]
        return [*words, *(word for kind, path in self._models.items() for word in (f"--{kind}", str(path)))]


def starter(kind: str) -> tuple[Path, Path] | None:
    """Return recipe file and weights of `starter-<kind>`, or None if its weights are not in this checkout."""
    file = STARTER / f"starter-{kind}.yaml"
    source = load_recipes(file)[0].source
    assert not isinstance(source, HubSource), "the starter pack needs no hub"
    try:
        return file, locate(source)
    except Unfit:
        return None
