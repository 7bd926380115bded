"""Imports without the garbage collector."""

import gc
import subprocess
import sys
import threading
from importlib import import_module
from importlib.util import find_spec

import pytest

from registry.base.importing import fast_imports


def test_the_collector_is_enabled_again_after_an_error() -> None:
    def fail() -> None:
        with fast_imports():
            with fast_imports():  # an import may cause another one
                pass
            seen.append(gc.isenabled())
            raise ImportError

    seen = list[bool]()
    with pytest.raises(ImportError):
        fail()
    assert seen == [False]
    assert gc.isenabled()


def test_only_one_thread_imports_at_a_time() -> None:
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


def test_an_absent_module_cannot_be_imported_inside_the_block() -> None:
    rarely = "this"  # a module that nothing imports
    assert rarely not in sys.modules
    with fast_imports(rarely, "json"):
        assert find_spec(rarely) is None
        with pytest.raises(ModuleNotFoundError):
            import_module(rarely)
        assert import_module("json").loads("1") == 1, "a module that was imported before stays available"
    assert find_spec(rarely) is not None


def test_an_absent_module_can_be_imported_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fast_imports("this"):
        raise ZeroDivisionError
    assert find_spec("this") is not None


def test_a_process_ends_without_a_report_of_leaked_objects() -> None:
    """Triton's nanobind writes one to standard error, which is the server's log."""
    code = "from registry.base.importing import fast_imports\nwith fast_imports():\n    import triton"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport atexit, gc\natexit.unregister(gc.unfreeze)"],
        capture_output=True,
        text=True,
    )
    assert "nanobind: leaked" in done.stderr, "without the unfreeze it is written"
