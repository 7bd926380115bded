"""Do vLLM's work on a grammar first in a process that may be killed, and bound it in the engine.

- vLLM parses a grammar on the loop that feeds all streams; this is skipped for a checked one.
- EngineCore compiles it in threads that take the CPU from its steps; they get a lower priority.
- An ambiguous grammar costs more with each token (xgrammar 0.2.8: 45 ms for the 256th, growing cubically), within the
  step of all requests; the request is ended if it takes more than its share.
"""

from __future__ import annotations

import os
import pkgutil
import threading
import time
from collections.abc import Callable
from typing import Any

from models.chat.vllm import variables
from registry.bounds import Bounds

VOCABULARY, LEAST_SECONDS = 131_072, 0.5
"""Vocabulary for which `compile_seconds` applies (less for smaller ones), and the minimum in seconds."""
REFILLED = 0.1
"""Seconds per second that all grammars of an engine together may take beyond the time for their tokens."""
LOWER = 5
"""Added to the niceness of compiling threads. Not the maximum, because a thread that is not scheduled while it has
Python's lock would block the engine's own thread, for a second on a busy machine.
"""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
SETTLED = ("choice", "grammar", "json", "structural_tag", "_backend", "_backend_was_auto")
"""Fields that a check changes: choices become a grammar, schemas are rewritten, and a backend is chosen."""
XGRAMMAR = ("auto", "xgrammar")
"""Backends that compile schemas with xgrammar."""
BACKENDS = {
    "xgrammar": "backend_xgrammar:XgrammarBackend",
    "guidance": "backend_guidance:GuidanceBackend",
    "outlines": "backend_outlines:OutlinesBackend",
    "lm-format-enforcer": "backend_lm_format_enforcer:LMFormatEnforcerBackend",
}
"""The backends' classes in EngineCore. 'auto' means that of the first request, which is ours."""
CHECKED = "roundhouse_checked"
"""Attribute set on the constraint of a checked request."""


def fields_of(constraint: Any) -> tuple[str, dict[str, Any]]:
    """Return the kind of a `StructuredOutputsParams`, and all its fields."""
    fields = {name: getattr(constraint, name) for name in CONSTRAINTS + OPTIONS}
    return next((kind for kind in CONSTRAINTS if fields[kind] is not None), ""), fields


def of_tag(tag: str) -> Any:
    """Return the constraint of a structural tag."""
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(structural_tag=tag)


def refused() -> Exception:
    """Return an error that vLLM attributes to the client; other errors would count as the engine's."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError("refused")
    return error


def settle(constraint: Any, settled: dict[str, Any]) -> None:
    """Write a check's result into a constraint, and mark it as checked."""
    for name, value in settled.items():
        setattr(constraint, name, value)
    setattr(constraint, CHECKED, True)


class SharedBudget:
    """CPU time beyond `each` per token, shared by all grammars of an engine, however many requests there are."""

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._budget, self._at = most, clock()

    def take(self, seconds: float) -> bool:
        """Take from the budget; return False if it is overdrawn.

        The debt is bounded, so that others are not refused for long.
        """
        now = self._clock()
        self._budget = min(self._most, self._budget + REFILLED * (now - self._at)) - seconds
        self._budget, self._at = max(-self._most, self._budget), now
        return self._budget >= 0


class TimedGrammar:
    """A compiled grammar of one request, with a limit on its CPU time."""

    def __init__(self, grammar: Any, follow: float, each: float, shared: SharedBudget | None = None) -> None:
        """Limit the seconds to `follow` in total plus `each` per token."""
        self._grammar, self._shared = grammar, shared
        self._budget, self._each = follow, each
        self._taken, self._refused = 0.0, False
        """Time taken since the last token; whether all grammars together, including this one, have taken too much."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    @property
    def overspent(self) -> bool:
        return self._budget < 0 or self._refused

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Return False to end the request, which vLLM reports as rejected by the grammar."""
        accepted: bool = self._timed(self._grammar.accept_tokens, request_id, tokens)
        due = self._each * len(tokens)
        self._budget += due
        if self._shared is not None and self._taken > due:
            self._refused = not self._shared.take(self._taken - due)
        self._taken = 0.0
        return accepted and not self.overspent

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        self._timed(self._grammar.fill_bitmask, bitmask, row)

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return work(*arguments)
        finally:
            taken = time.thread_time() - began
            self._budget -= taken
            self._taken += taken


def _be_nicer() -> None:
    """Raise the niceness of this thread; threads started by it inherit that. Safe to call repeatedly."""
    target = os.getpriority(os.PRIO_PROCESS, os.getpid()) + LOWER
    if os.getpriority(os.PRIO_PROCESS, 0) < target:
        os.setpriority(os.PRIO_PROCESS, 0, min(target, 19))


def patch(manager: Any, params: Any) -> None:
    """Patch `StructuredOutputManager` (in EngineCore) and `SamplingParams` (in the slot)."""
    stock_create, stock_validate = manager._create_grammar, params._validate_structured_outputs

    def create_grammar(self: Any, request: Any) -> TimedGrammar:
        if threading.current_thread() is not threading.main_thread():
            _be_nicer()
        follow, each = map(float, os.environ[variables.FOLLOW].split())
        shared = self.__dict__.setdefault("roundhouse_budget", SharedBudget(follow))
        return TimedGrammar(stock_create(self, request), follow, each, shared)

    def validate(self: Any, *arguments: Any, **named: Any) -> None:
        if not getattr(self.structured_outputs, CHECKED, False):
            stock_validate(self, *arguments, **named)

    manager._create_grammar = create_grammar
    params._validate_structured_outputs = validate


class Compiler:
    """Compiles a grammar as the slot and EngineCore would. Created once, from an engine's settings."""

    def __init__(self, engine: Any, bounds: Bounds) -> None:
        self.bounds = bounds
        self._config = engine.vllm_config
        self._tokenizer = engine.get_tokenizer()
        vocabulary = self._config.model_config.get_vocab_size()
        backend = BACKENDS.get(self._config.structured_outputs_config.backend, BACKENDS["xgrammar"])
        make = pkgutil.resolve_name(f"vllm.v1.structured_output.{backend}")
        self._backend = make(self._config, tokenizer=self._tokenizer, vocab_size=vocabulary)
        self.seconds = max(LEAST_SECONDS, bounds.compile_seconds * vocabulary / VOCABULARY)
        """CPU seconds for a check. The compiler tries every part with every token, so its time grows with the
        vocabulary. Grammars that take even longer are also slow to follow.
        """

    def settle(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the constraint's fields after vLLM's own check. Raises ValueError with the fault."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams

        constraint = StructuredOutputsParams(**fields)
        backend = self._config.structured_outputs_config.backend
        if constraint.json is not None and backend in XGRAMMAR:
            # vLLM's list of what xgrammar does not support is too long in places and too short in others.
            constraint._backend, constraint._backend_was_auto = "xgrammar", backend == "auto"
        else:
            params = SamplingParams(structured_outputs=constraint)
            params._validate_structured_outputs(
                self._config.model_config, self._config.structured_outputs_config, self._tokenizer
            )
        return {name: getattr(constraint, name) for name in SETTLED}

    def compile(self, fields: dict[str, Any]) -> TimedGrammar:
        """Compile as EngineCore does. May raise any error of the library."""
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        kind, text = get_structured_output_key(StructuredOutputsParams(**fields))
        compiled = self._backend.compile_grammar(kind, text)
        return TimedGrammar(compiled, self.bounds.follow_seconds, self.bounds.follow_token_seconds)

    def walk(self, grammar: TimedGrammar, steps: int) -> int:
        """Follow a grammar for some varied choices of allowed tokens. Returns the number of steps."""
        import numpy as np

        mask, ends = self._backend.allocate_token_bitmask(1), self._tokenizer.all_special_ids
        for step in range(steps):
            if grammar.is_terminated() or grammar.overspent:
                return step
            grammar.fill_bitmask(mask, 0)
            bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: self._config.model_config.get_vocab_size()])
            if not len(allowed):
                return step
            on = allowed[~np.isin(allowed, ends)]  # an end token would hide what follows
            allowed = on if len(on) else allowed
            if not grammar.accept_tokens("walk", [int(allowed[step * 7919 % len(allowed)])]):
                return step
        return steps
