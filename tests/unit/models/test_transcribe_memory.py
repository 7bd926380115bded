"""When the C library is told to give freed memory back: from the first long recording to the end of the last."""

import threading

import pytest

from models import transcribe_memory
from models.transcribe_memory import LEAN, M_MMAP_THRESHOLD, USUAL, lean

ON, OFF, TRIM = ("mallopt", M_MMAP_THRESHOLD, LEAN), ("mallopt", M_MMAP_THRESHOLD, USUAL), ("malloc_trim", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    monkeypatch.setattr(transcribe_memory, "_call", lambda *call: found.append(call))
    return found


def test_recordings_side_by_side_share_it(calls: list[tuple[object, ...]]) -> None:
    with lean():
        with lean():
            assert calls == [ON]
        assert calls == [ON, TRIM]
    assert calls == [ON, TRIM, OFF, TRIM]


def test_it_ends_with_a_recording_that_fails_in_any_thread(calls: list[tuple[object, ...]]) -> None:
    def fails() -> None:
        with pytest.raises(ValueError, match="broken"), lean():
            raise ValueError("broken")

    threads = [threading.Thread(target=fails) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [call for call in calls if call != TRIM] == [ON, OFF] * calls.count(ON)
    assert calls.count(TRIM) == 8


def test_a_c_library_without_these_words_is_left_alone() -> None:
    transcribe_memory._call("no_such_function_of_any_c_library", 1)
