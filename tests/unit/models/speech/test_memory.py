"""The C library returns freed memory from the first long recording until the last one ends."""

import subprocess
import sys
import threading

import pytest

from models.speech import libraries
from models.speech.libraries import KEPT, LEAN, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, USUAL, keep, lean

ON = [("mallopt", M_MMAP_THRESHOLD, LEAN), ("mallopt", M_TRIM_THRESHOLD, 2 * USUAL)]
OFF = [("mallopt", M_MMAP_THRESHOLD, USUAL), ("mallopt", M_TRIM_THRESHOLD, 2 * USUAL)]
KEEP = [("mallopt", M_MMAP_THRESHOLD, KEPT), ("mallopt", M_TRIM_THRESHOLD, KEPT)]
TRIM = [("malloc_trim", 0)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []

    def call(*words: object) -> int:
        found.append(words)
        return 1

    monkeypatch.setattr(libraries, "_call", call)
    monkeypatch.setattr(libraries, "_else", USUAL)
    return found


def test_memory_is_returned_until_the_last_of_several_recordings_ends(calls: list[tuple[object, ...]]) -> None:
    with lean():
        with lean():
            assert calls == ON + TRIM
        assert calls == ON + TRIM + TRIM
    assert calls == ON + TRIM + TRIM + OFF + TRIM


def test_a_c_library_that_refuses_a_large_threshold_gets_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[object, ...]] = []

    def call(*words: object) -> int:
        found.append(words)
        return int(words != ("mallopt", M_MMAP_THRESHOLD, KEPT))

    monkeypatch.setattr(libraries, "_call", call)
    monkeypatch.setattr(libraries, "_else", USUAL)
    keep()
    assert found == [KEEP[0], OFF[0], KEEP[1]]


def test_a_model_on_a_cpu_keeps_freed_memory_except_during_long_recordings(calls: list[tuple[object, ...]]) -> None:
    keep()
    with lean():
        keep()  # another model is loaded during a long recording
    assert calls == KEEP + ON + TRIM + KEEP + TRIM


def test_a_failing_recording_ends_it_in_any_thread(calls: list[tuple[object, ...]]) -> None:
    def fails() -> None:
        with pytest.raises(ValueError, match="broken"), lean():
            raise ValueError("broken")

    threads = [threading.Thread(target=fails) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun = calls.count(ON[0])
    assert [call for call in calls if call not in TRIM] == (ON + OFF) * begun
    assert calls.count(TRIM[0]) == 8 + begun


def test_a_c_library_without_these_functions_is_left_alone() -> None:
    libraries._call("no_such_function_of_any_c_library", 1)


FAULTS = """
import ctypes, resource
from models.speech.libraries import KEPT, M_MMAP_THRESHOLD, keep, lean

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    "Return the number of pages that the system clears for an array of 40 MB."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array = libc.malloc(40 << 20)
    ctypes.memset(array, 1, 40 << 20)
    libc.free(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if not hasattr(libc, "mallopt") or not libc.mallopt(M_MMAP_THRESHOLD, KEPT):
    print("skip")  # not glibc, or one that has a lower bound
else:
    keep()
    found = [faults(), faults()]
    with lean():
        found.append(faults())
    print(*found, faults(), faults())
"""


def test_large_arrays_reuse_freed_memory_except_during_long_recordings() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=240)
    if done.stdout.strip() == "skip":
        pytest.skip("this C library does not keep arrays of this size")
    first, second, long, after, again = map(int, done.stdout.split())
    few = first // 10
    assert second < few, "kept"
    assert long > few, "returned when a long recording begins"
    assert after > few, "and when it ends"
    assert again < few, "kept again"
