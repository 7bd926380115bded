"""The process that checks grammars: a fork of the slot, which forks another process for each grammar.

The fork of the slot never compiles anything. It has no threads, so its own forks are safe, and it lives as long as the
slot. The kernel ends a grammar's process when it exceeds its CPU time or memory; the fork of the slot ends it when the
client has left or the time is up.

| message from the slot | answer |
|---|---|
| a constraint's fields | a `Verdict`, when its process has ended |
| null | none; ends the running process, whose verdict follows as usual |
"""

import gc
import json
import multiprocessing
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from models.chat.grammars import language
from models.chat.grammars.parts import SchemaError
from models.chat.vllm.grammars import Compiler
from models.process_control import die_with_parent
from registry.base.json import NOT_JSON
from registry.base.limits import limit
from registry.bounds import Bounds

NICE = 10

TOO_LARGE, TOO_SLOW, INVALID = "grammar_too_large", "grammar_too_slow", "invalid_grammar"
DEEPEST = 20_000
"""Limit of Python's stack for a schema with long chains of references."""
REWRITTEN = 8
"""Largest ratio of a rewritten schema's bytes to the client's."""
BUSY, UNSATISFIABLE = "grammar_check_busy", "unsatisfiable_constraint"
_PLACE = re.compile(r"(\[[\d:.]+\] )?\S+\.(cc|cpp|h):\d+: ")
"""The position in xgrammar's own source: time, path, line."""


class Verdict(msgspec.Struct):
    """The result of a check. If `code` is empty, `settled` may enter the engine."""

    code: str = ""
    fault: str = ""
    settled: dict[str, Any] = {}
    path: list[str | int] | None = None
    """The path of the keyword of a JSON schema that `fault` is about."""


class CheckerProcess(NamedTuple):
    """The slot's ends of the two pipes, and the process."""

    process: BaseProcess
    orders: int
    verdicts: int


def start(engine: Any, bounds: Bounds) -> CheckerProcess:
    """Fork the process. Must run in its own thread (`models.chat.processes`)."""
    orders, own_orders = os.pipe()
    own_verdicts, verdicts = os.pipe()

    def run() -> None:
        os.close(own_orders)
        os.close(own_verdicts)
        _serve(engine, _CheckQueue(orders), verdicts, slot, bounds)

    slot = os.getpid()
    process = multiprocessing.get_context("fork").Process(target=run, name="Grammars", daemon=True)
    try:
        process.start()
    finally:
        os.close(orders)
        os.close(verdicts)
    return CheckerProcess(process, own_orders, own_verdicts)


class _CheckQueue:
    """Lines from the slot, buffered, so that an empty pipe does not mean that there is no line."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._read = bytearray()

    def next(self) -> bytes:
        """Return the next line; empty if the slot has ended."""
        while (end := self._read.find(b"\n")) < 0:
            part = os.read(self.pipe, 1 << 16)
            if not part:
                return b""
            self._read += part
        line = bytes(self._read[: end + 1])
        del self._read[: end + 1]
        return line

    def there(self) -> bool:
        return bool(self._read)


def _serve(engine: Any, orders: _CheckQueue, verdicts: int, slot: int, bounds: Bounds) -> None:
    die_with_parent(slot)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    gc.freeze()  # the slot's objects are never collected here
    gc.disable()
    os.nice(NICE)
    compiler = Compiler(engine, bounds)
    with os.fdopen(verdicts, "wb") as out:
        while line := orders.next():
            if (fields := msgspec.json.decode(line)) is not None:
                out.write(msgspec.json.encode(_in_own_process(compiler, fields, orders)) + b"\n")
                out.flush()


def _in_own_process(compiler: Compiler, fields: dict[str, Any], orders: _CheckQueue) -> Verdict:
    bounds = compiler.bounds
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _bounded(lambda: _judge(compiler, fields), writer, bounds, compiler.seconds)
    os.close(writer)
    text = _read_result(reader, orders, bounds.grammar_check_seconds)
    os.close(reader)
    if text is None:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text is None:
        return Verdict(BUSY)
    with suppress(*NOT_JSON):
        return msgspec.json.decode(text, type=Verdict)
    return _of_end(status, compiler)


def _read_result(reader: int, orders: _CheckQueue, within: float) -> bytes | None:
    """Return the output of a grammar's process; None if the slot no longer needs it or it took too long."""
    text = bytearray()
    deadline = time.monotonic() + within
    while not orders.there():
        ready, _, _ = select.select([reader, orders.pipe], [], [], max(0, deadline - time.monotonic()))
        if reader not in ready:
            break
        if not (part := os.read(reader, 1 << 16)):
            return bytes(text)
        text += part
    return None


def _of_end(status: int, compiler: Compiler) -> Verdict:
    if status == -signal.SIGPROF:
        return Verdict(
            TOO_SLOW,
            f"The grammar or schema of this request takes over {compiler.seconds:g} s to compile. Make it simpler.",
        )
    return _over_memory(compiler.bounds)


def _over_memory(bounds: Bounds) -> Verdict:
    return Verdict(
        TOO_LARGE,
        f"The grammar or schema of this request takes over {bounds.compile_memory >> 20} MiB to compile, or breaks the "
        "compiler. Make it smaller.",
    )


def _bounded(work: Callable[[], Verdict], writer: int, bounds: Bounds, seconds: float) -> None:
    """Run `work` within the bounds, write what it returns, and end this process."""
    try:
        die_with_parent(os.getppid())
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        limit(resource.RLIMIT_CORE, 0, for_good=True)
        most = psutil.Process().memory_info().data + bounds.compile_memory
        limit(resource.RLIMIT_DATA, most, for_good=True)
        verdict = work()
        with os.fdopen(writer, "wb") as out:
            out.write(msgspec.json.encode(verdict))
    finally:
        os._exit(0)


def _with_schemas(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a constraint's fields with rewritten JSON schemas; False for a schema that nothing fits.

    Raises SchemaError.
    """
    sys.setrecursionlimit(DEEPEST)
    for name, rewrite in (("json", language.rewrite), ("structural_tag", language.rewrite_tag)):
        if (value := fields[name]) is not None:
            schema = rewrite(json.loads(value) if isinstance(value, str) else value)
            return fields | {name: json.dumps(schema, ensure_ascii=False) if schema is not False else False}
    return fields


def _judge(compiler: Compiler, fields: dict[str, Any]) -> Verdict:
    try:
        fields = _with_schemas(fields)
        if fields["json"] is False:
            return Verdict(UNSATISFIABLE, "no text satisfies the schema of this request")
        if len(str(fields["json"])) > REWRITTEN * compiler.bounds.grammar_bytes:
            return _over_memory(compiler.bounds)
        settled = compiler.settle(fields)
        public = {name: settled.get(name, value) for name, value in fields.items()}
        grammar = compiler.compile(public)
    except SchemaError as error:
        return Verdict(INVALID, str(error), path=list(error.path))
    except MemoryError:
        return _over_memory(compiler.bounds)
    except Exception as error:  # the libraries may raise anything
        if "bad_alloc" in str(error):
            return _over_memory(compiler.bounds)
        message, cause = str(error), str(error.__cause__ or "")  # vLLM's says that it is wrong, xgrammar's why
        fault = _PLACE.sub("", message if cause in message else f"{message} {cause}").strip()
        return Verdict(INVALID, f"The grammar or schema of this request cannot be used: {fault}"[:2000])
    size = getattr(getattr(grammar, "ctx", None), "memory_size_bytes", 0)
    if size > (most := compiler.bounds.compiled_bytes):
        return Verdict(
            TOO_LARGE,
            f"The grammar or schema of this request takes {size >> 20} MiB when compiled; up to "
            f"{most >> 20} are taken. Make it smaller.",
        )
    steps = compiler.walk(grammar, compiler.bounds.walked_tokens)
    if grammar.overspent:
        return Verdict(
            TOO_SLOW,
            "The grammar or schema of this request takes too long to follow, token by token: it can be read in too "
            "many ways. Make it unambiguous.",
        )
    if not steps and not grammar.is_terminated():
        return Verdict(UNSATISFIABLE, "no text satisfies the schema or grammar of this request")
    return Verdict(settled=settled)
