"""Sleep of speech models, although CTranslate2 silently keeps a model loaded while it counts a batch as running."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from models.estimate import estimate
from models.speech import sleep
from models.speech.engine import estimate_memory
from models.speech.sleep import SpeechSleeper, unload
from registry.errors import EngineFailed
from registry.recipes.loading import load_documents

MIB = 2**20


class Busy:
    """A replica of CTranslate2 that ignores the first `refuses` calls, as if a batch were running."""

    def __init__(self, refuses: int) -> None:
        self.refuses, self.model_is_loaded, self.requested = refuses, True, list[bool]()

    def unload_model(self, to_cpu: bool) -> None:
        self.requested.append(to_cpu)
        self.model_is_loaded = len(self.requested) <= self.refuses


def test_a_model_that_is_busy_for_a_moment_is_unloaded() -> None:
    replica = Busy(refuses=3)
    unload(replica, to_cpu=True)
    assert not replica.model_is_loaded
    assert replica.requested == [True] * 4


def test_a_model_that_stays_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(EngineFailed, match="did not unload"):
        unload(Busy(refuses=1_000_000), to_cpu=False)


def test_a_model_that_is_unloaded_already_is_left_alone() -> None:
    replica = Busy(refuses=0)
    replica.model_is_loaded = False
    unload(replica, to_cpu=False)
    assert replica.requested == []


def test_the_estimate_of_a_process_excludes_the_memory_of_a_step() -> None:
    """That memory is kept free separately for each model on a GPU."""
    path = Path(__file__).parents[4] / "models" / "starter" / "pack" / "starter-speech"
    [recipe] = load_documents([Path(__file__).parents[4] / "recipes" / "starter" / "starter-speech.yaml"]).models
    needs = estimate(recipe, path, "cuda")
    assert needs.activations > 0
    assert estimate_memory(recipe, path) + needs.activations == needs.total


class Model:
    """A speech model's weights on a GPU. `measured` has the driver's figures, or None without them."""

    def __init__(self, measured: list[int | None]) -> None:
        self.measured = measured
        self.whisper = SimpleNamespace(model=Busy(refuses=0))
        self._parallel = None

    def held(self) -> int | None:
        return self.measured.pop(0) if len(self.measured) > 1 else self.measured[0]


@pytest.mark.parametrize(
    ("measured", "awake", "asleep"), [([7 * MIB, 2 * MIB], 7 * MIB, 2 * MIB), ([None], 9 * MIB, 4 * MIB)]
)
async def test_only_the_models_own_bytes_on_a_gpu_count(
    measured: list[int | None], awake: int, asleep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the driver's figure for this process, or the estimate without one, less the weights."""
    (tmp_path / "model.bin").touch()
    monkeypatch.setattr(SpeechSleeper, "_hear", lambda self: ([[1]], [0.0]))
    model = Model(list(measured))
    sleeper = SpeechSleeper(model, tmp_path, "cuda:0", model.held, 9 * MIB, 5 * MIB, 0)  # type: ignore[arg-type]
    assert sleeper.expected().device_bytes == awake - 5 * MIB
    assert (await sleeper.down()).device_bytes == asleep
