"""CTranslate2 leaves a model loaded, without a word, while it counts a batch as running: that is seen, and met."""

import pytest

from models.speech import sleep as transcribe_sleep
from models.speech.sleep import unloaded
from registry.errors import EngineFailed


class Busy:
    """A replica that counts a batch as running for the first calls, as CTranslate2 does."""

    def __init__(self, refuses: int) -> None:
        self.refuses, self.model_is_loaded, self.asked = refuses, True, list[bool]()

    def unload_model(self, to_cpu: bool) -> None:
        self.asked.append(to_cpu)
        self.model_is_loaded = len(self.asked) <= self.refuses


def test_a_model_that_is_counted_as_busy_for_a_moment_is_unloaded() -> None:
    replica = Busy(refuses=3)
    unloaded(replica, to_cpu=True)
    assert not replica.model_is_loaded
    assert replica.asked == [True] * 4


def test_a_model_that_stays_loaded_is_an_error_and_no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcribe_sleep, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(EngineFailed, match="did not unload"):
        unloaded(Busy(refuses=1_000_000), to_cpu=False)


def test_one_that_is_unloaded_already_is_left_alone() -> None:
    replica = Busy(refuses=0)
    replica.model_is_loaded = False
    unloaded(replica, to_cpu=False)
    assert replica.asked == []
