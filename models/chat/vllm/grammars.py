"""vLLM's work on a grammar, done first in a process that may be killed.

- vLLM parses a grammar on the loop that feeds all streams: not again when it was checked.
- EngineCore compiles it in threads that take the CPU from its steps: at a lower priority instead.
- An ambiguous grammar costs more with each token (xgrammar 0.2.8: 45 ms for the 256th, and the cube of it), inside the
  step of all: it ends the request when it takes more than its share.
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
"""`compile_seconds` are for so many tokens; for fewer they are fewer, but never less than this."""
REFILLED = 0.1
"""Seconds in each second that all grammars of an engine together may take beyond their tokens' own."""
LOWER = 5
"""Added to the niceness of threads that compile. Not the most: a thread that is never scheduled while it holds Python's
lock keeps the engine's own thread waiting, for a second on a busy machine.
"""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
SETTLED = ("choice", "grammar", "json", "structural_tag", "_backend", "_backend_was_auto")
"""Fields that a check changes: choices become a grammar, schemas are written anew, and a backend is chosen."""
XGRAMMAR = ("auto", "xgrammar")
"""Backends that compile schemas with xgrammar."""
BACKENDS = {
    "xgrammar": "backend_xgrammar:XgrammarBackend",
    "guidance": "backend_guidance:GuidanceBackend",
    "outlines": "backend_outlines:OutlinesBackend",
    "lm-format-enforcer": "backend_lm_format_enforcer:LMFormatEnforcerBackend",
}
"""The classes that EngineCore uses. 'auto' means the one of the first request, which is our first."""
CHECKED = "roundhouse_checked"
"""Set on the constraint of a request that was checked."""


def fields_of(constraint: Any) -> tuple[str, dict[str, Any]]:
    """The kind of a `StructuredOutputsParams` that is set, and all its fields."""
    fields = {name: getattr(constraint, name) for name in CONSTRAINTS + OPTIONS}
    return next((kind for kind in CONSTRAINTS if fields[kind] is not None), ""), fields


def of_tag(tag: str) -> Any:
    """The constraint of a structural tag."""
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(structural_tag=tag)


def refused() -> Exception:
    """An error that vLLM takes for a client's fault; another one would count as the engine's."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError("refused")
    return error


def settle(constraint: Any, settled: dict[str, Any]) -> None:
    """Write a check's result into a constraint, and mark it as checked."""
    for name, value in settled.items():
        setattr(constraint, name, value)
    setattr(constraint, CHECKED, True)


class SharedBudget:
    """CPU time that all grammars of an engine share beyond `each` for a token: many requests or sequences get no more
    of it.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._budget, self._at = most, clock()

    def take(self, seconds: float) -> bool:
        """Take from the budget; False: it is overdrawn. The debt is bounded, so that others are not refused for
        long.
        """
        now = self._clock()
        self._budget = min(self._most, self._budget + REFILLED * (now - self._at)) - seconds
        self._budget, self._at = max(-self._most, self._budget), now
        return self._budget >= 0


class TimedGrammar:
    """A compiled grammar of one request, with the CPU time that it may take."""

    def __init__(self, grammar: Any, follow: float, each: float, shared: SharedBudget | None = None) -> None:
        """Seconds: `follow` in all, and `each` more for a token."""
        self._grammar, self._shared = grammar, shared
        self._budget, self._each = follow, each
        self._taken, self._refused = 0.0, False
        """Time taken since the last token; whether all grammars together, this one included, have taken too much."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    @property
    def overspent(self) -> bool:
        return self._budget < 0 or self._refused

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """False ends the request: vLLM calls it rejected by the grammar."""
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
    """Raise the niceness of this thread, which threads that it starts inherit. Safe to call again."""
    target = os.getpriority(os.PRIO_PROCESS, os.getpid()) + LOWER
    if os.getpriority(os.PRIO_PROCESS, 0) < target:
        os.setpriority(os.PRIO_PROCESS, 0, min(target, 19))


def patch(manager: Any, params: Any) -> None:
    """`StructuredOutputManager` (EngineCore) and `SamplingParams` (slot)."""
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
    """Compiles a grammar as the slot and EngineCore would. Made once, from an engine's own settings."""

    def __init__(self, engine: Any, bounds: Bounds) -> None:
        self.bounds = bounds
        self._config = engine.vllm_config
        self._tokenizer = engine.get_tokenizer()
        vocabulary = self._config.model_config.get_vocab_size()
        backend = BACKENDS.get(self._config.structured_outputs_config.backend, BACKENDS["xgrammar"])
        make = pkgutil.resolve_name(f"vllm.v1.structured_output.{backend}")
        self._backend = make(self._config, tokenizer=self._tokenizer, vocab_size=vocabulary)
        self.seconds = max(LEAST_SECONDS, bounds.compile_seconds * vocabulary / VOCABULARY)
        """CPU seconds for a check. The compiler tries every part with every token, so it takes longer the more there
        are; a grammar that takes longer still is as slow to follow: forty rules that lead into one another took 3 s
        with 320 tokens, and 0.5 s in the step of the second token.
        """

    def settle(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The constraint as vLLM's own check leaves it. Raises ValueError with what is wrong."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams

        constraint = StructuredOutputsParams(**fields)
        backend = self._config.structured_outputs_config.backend
        if constraint.json is not None and backend in XGRAMMAR:
            # vLLM has a list of what xgrammar does not know, which is too long in places and too short in others.
            constraint._backend, constraint._backend_was_auto = "xgrammar", backend == "auto"
        else:
            params = SamplingParams(structured_outputs=constraint)
            params._validate_structured_outputs(
                self._config.model_config, self._config.structured_outputs_config, self._tokenizer
            )
        return {name: getattr(constraint, name) for name in SETTLED}

    def compile(self, fields: dict[str, Any]) -> TimedGrammar:
        """Compile as EngineCore does. Raises whatever the library raises."""
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        kind, text = get_structured_output_key(StructuredOutputsParams(**fields))
        compiled = self._backend.compile_grammar(kind, text)
        return TimedGrammar(compiled, self.bounds.follow_seconds, self.bounds.follow_token_seconds)

    def walk(self, grammar: TimedGrammar, steps: int) -> int:
        """Follow a grammar for some tokens, a mixed choice of the allowed ones. Returns how many it went."""
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
            on = allowed[~np.isin(allowed, ends)]  # an end would hide what comes after it
            allowed = on if len(on) else allowed
            if not grammar.accept_tokens("walk", [int(allowed[step * 7919 % len(allowed)])]):
                return step
        return steps
