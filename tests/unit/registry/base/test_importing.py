"""Imports without the garbage collector."""

import gc
import subprocess
import sys
import threading
from importlib import import_module
from importlib.util import find_spec

import pytest

from registry.base.importing import fast_imports


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


def test_what_is_absent_cannot_be_imported_until_the_end() -> None:
    rarely = "this"  # a module that nothing imports
    assert rarely not in sys.modules
    with fast_imports(rarely, "json"):
        assert find_spec(rarely) is None
        with pytest.raises(ModuleNotFoundError):
            import_module(rarely)
        assert import_module("json").loads("1") == 1, "it had been imported before"
    assert find_spec(rarely) is not None


def test_what_was_absent_is_there_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fast_imports("this"):
        raise ZeroDivisionError
    assert find_spec("this") is not None


def test_a_process_ends_without_a_list_of_what_the_collector_left() -> None:
    """Triton's nanobind writes one to the standard error, which is the server's log."""
    code = "from registry.base.importing import fast_imports\nwith fast_imports():\n    import triton"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport atexit, gc\natexit.unregister(gc.unfreeze)"],
        capture_output=True,
        text=True,
    )
    assert "nanobind: leaked" in done.stderr, "it would"
