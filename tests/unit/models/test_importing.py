"""Imports without the garbage collector."""

import gc
import threading

import pytest

from models.importing import fast_imports


def test_the_collector_comes_back_also_after_an_error() -> None:
    def fail() -> None:
        with fast_imports():
            with fast_imports():  # one import takes another along
                pass
            seen.append(gc.isenabled())
            raise ImportError

    seen = list[bool]()
    with pytest.raises(ImportError):
        fail()
    assert seen == [False]
    assert gc.isenabled()


def test_one_thread_at_a_time() -> None:
    inside = threading.Event()

    def other() -> None:
        with fast_imports():
            inside.set()

    with fast_imports():
        thread = threading.Thread(target=other)
        thread.start()
        assert not inside.wait(0.05)
    thread.join(200)
    assert inside.is_set()
    assert gc.isenabled()
