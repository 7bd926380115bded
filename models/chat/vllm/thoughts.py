"""vLLM's parsers of thoughts where the prompt has ended the thoughts already: what comes is the answer.

So a template says that a model is not to think. In a stream vLLM looks at the prompt; of an answer in one piece it does
not, and takes all of it for a thought, unless the request itself switched them off.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def patch() -> None:
    import_module("vllm.parser.abstract_parser").Parser.set_prompt_token_ids = _told


def _told(self: Any, prompt_token_ids: Sequence[int]) -> None:
    """vLLM tells a parser of the prompt before an answer in one piece. Those that know by themselves have their own."""
    reasoning = getattr(self, "_reasoning_parser", None)
    if reasoning is None or not reasoning.engine_based_streaming:
        return  # others do not know one turn from the next
    if self.is_reasoning_end(list(prompt_token_ids)) and not self.is_reasoning_end([]):
        self.extract_reasoning = _all_said


def _all_said(model_output: str, _: object) -> tuple[None, str]:
    return None, model_output
