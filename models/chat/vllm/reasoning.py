"""vLLM's parsers of thoughts where the prompt has ended the thoughts already: what comes is the answer.

So a template says that a model is not to think. In a stream vLLM looks at the prompt; of an answer in one piece it does
not, and takes all of it for a thought, unless the request itself switched them off.
"""

from collections.abc import Sequence
from typing import Any

HANDLERS = {
    "openai_serving_chat": "parser_cls", "anthropic_serving_messages": "parser_cls",
    "openai_serving_responses": "parser",
}  # fmt: skip
"""Of vLLM's application, and what each calls its kind of parser."""


def patch(state: Any) -> None:
    for name, attribute in HANDLERS.items():
        handler = getattr(state, name, None)  # this model may not have it
        if (kind := getattr(handler, attribute, None)) is not None:
            setattr(handler, attribute, prompt_aware(kind))


def prompt_aware(kind: Any) -> Any:
    """The same kind of parser, which looks at the prompt. Those that cannot tell one turn from the next stay."""
    reasoning = kind.reasoning_parser_cls
    if reasoning is None or not reasoning.engine_based_streaming:
        return kind

    class PromptAwareParser(kind):  # type: ignore[misc]
        def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
            """vLLM tells a parser of the prompt before an answer in one piece."""
            super().set_prompt_token_ids(prompt_token_ids)
            if self.is_reasoning_end(list(prompt_token_ids)) and not self.is_reasoning_end([]):
                self.extract_reasoning = _answer_only

    return PromptAwareParser


def _answer_only(model_output: str, _: object) -> tuple[None, str]:
    return None, model_output
