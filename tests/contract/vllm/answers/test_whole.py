"""No text of a model is lost in answers in one piece or streamed, by vLLM's own handler with a scripted engine.

ROUNDHOUSE_ANSWER_EXAMPLES sets the number of random answers (default 200).
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.chat.vllm import handlers
from models.chat.vllm.answers.call_syntax import SYNTAXES
from registry import vllm_source
from tests.contract.vllm.answers.calls import FAN, LIGHT, SAMPLES

pytestmark = pytest.mark.real
EXAMPLES = int(os.environ.get("ROUNDHOUSE_ANSWER_EXAMPLES", "200"))
SCHEMA = {"type": "object", "properties": {"state": {"type": "string"}, "speed": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("set_light", "set_fan")]
NAMED = {"type": "function", "function": {"name": "set_light"}}
REQUIRED = json.dumps([{"name": name, "parameters": json.loads(arguments)} for name, arguments in (LIGHT, FAN)])
MISSING = {"cohere_command3", "cohere_command4", "hf", "olmo3"}
"""Parsers that need a package or template that is not here, or a token that this vocabulary lacks."""
OWN_LANGUAGE = {"kimi_k3", "muse_glimmer", "inkling", "openai", "openai_gptoss", "minicpmv", "hunyuan_a13b", "granite"}
"""Parsers of models whose plain text has markup, too."""
MARK = re.compile(r"</?[^\s<>]+>|\[/?[A-Z_]+\]")
MORE = {"<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>", "<mm:think>", "</mm:think>",
        "<minimax:tool_call>", "</minimax:tool_call>"}  # fmt: skip
WORDS = (
    "quokka",
    "zebra ",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "(",
    ")",
    "\n",
    " ",
    "é",
    "=",
    '"',
    "'",
    ",",
    ":",
    "<t",
    "</",
)
TEXTS = (
    "[the page](http://a.example) says so", "[1, 2, 3]", '[set_light("on")]', '{"a": 1}', "a < b", "```json\n",
    "</tool_call>", "<tool_call>", "<think>", "</think>", REQUIRED, LIGHT[1], "functools[",
)  # fmt: skip


class Answer(NamedTuple):
    reasoning: str
    content: str
    calls: list[tuple[str, Any]]
    finish: str | None


@cache
def tokenizer() -> Any:
    """Return a tokenizer with a token for each byte and for each marker of any parser."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_tokens([AddedToken(mark, normalized=False) for mark in sorted(_marks())])
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


def _marks() -> set[str]:
    """Return the markers in all parsers' sources, because parsers look for them in the vocabulary."""
    root = vllm_source.root()
    assert root is not None
    files = [file for folder in ("tool_parsers", "reasoning", "parser") for file in (root / folder).glob("*.py")]
    marks = {mark for text in (*SAMPLES.values(), *map(Path.read_text, files)) for mark in MARK.findall(text)}
    # Hunyuan's markers may end in a name of the checkpoint's own, which its parsers read from the vocabulary
    return {mark for mark in marks if len(mark) < 45 and "{" not in mark and not re.match(r"</?[a-z_]+:", mark)} | MORE


@cache
def serving(tool_parser: str | None, reasoning_parser: str | None) -> Any:
    """Return vLLM's handler of Chat Completions with our parser, without an engine."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.parser.parser_manager import ParserManager

    handler: Any = object.__new__(OpenAIServingChat)
    handler.__dict__ |= {
        "parser_cls": ParserManager.get_parser(
            tool_parser, reasoning_parser, enable_auto_tools=True, is_harmony=tool_parser == "openai"
        ),
        "enable_auto_tools": True, "response_role": "assistant", "model_config": None, "system_fingerprint": None,
        "default_chat_template_kwargs": None,
        **dict.fromkeys((
            "enable_log_outputs", "request_logger", "enable_force_include_usage", "_include_reasoning_tokens_details",
            "enable_prompt_tokens_details", "enable_per_request_metrics",
        ), False),
    }  # fmt: skip
    handlers.patch_parsers(SimpleNamespace(openai_serving_chat=handler), tool_parser or "")
    return handler


def request(stream: bool, tool_choice: Any) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": tool_choice}
    return ChatCompletionRequest.model_validate({**body, "stream": stream})


async def results(prompt: str, pieces: list[tuple[str, list[int]]], finish: str) -> AsyncIterator[Any]:
    """Yield an engine's results, with a text and its tokens in each piece."""
    from vllm.outputs import CompletionOutput, RequestOutput

    for number, (text, tokens) in enumerate(pieces):
        last = number == len(pieces) - 1
        output = CompletionOutput(0, text, tokens, None, None, finish_reason=finish if last else None)
        yield RequestOutput("r", prompt, tokenizer().encode(prompt), None, [output], last)


def arguments(handler: Any, sent: Any, outputs: AsyncIterator[Any]) -> tuple[Any, ...]:
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata

    return sent, outputs, "r", "m", [], tokenizer(), RequestResponseMetadata(request_id="r")


def calls_of(calls: list[Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(text)) for name, text in calls]


async def plain(handler: Any, prompt: str, text: str, finish: str, choice: Any) -> Answer:
    sent = request(False, choice)
    parser = handler._make_parser(sent, tokenizer(), None)
    outputs = results(prompt, [(text, tokenizer().encode(text))], finish)
    answer = await handler.chat_completion_full_generator(*arguments(handler, sent, outputs), parser=parser)
    (choice,) = answer.choices
    message = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    return Answer(message.reasoning or "", message.content or "", calls_of(calls), choice.finish_reason)


async def streamed(handler: Any, prompt: str, pieces: list[tuple[str, list[int]]], finish: str, choice: Any) -> Answer:
    sent = request(True, choice)
    reasoning, content, calls, end = "", "", {}, None
    stream = handler.chat_completion_stream_generator(*arguments(handler, sent, results(prompt, pieces, finish)))
    async for event in stream:
        data = event.removeprefix("data: ").strip()
        if data == "[DONE]":
            break
        (choice,) = json.loads(data)["choices"]
        delta = choice["delta"]
        reasoning += delta.get("reasoning") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            entry = calls.setdefault(call["index"], ["", ""])
            entry[0] += call["function"].get("name") or ""
            entry[1] += call["function"].get("arguments") or ""
        end = choice["finish_reason"] or end
    assert sorted(calls) == list(range(len(calls)))
    return Answer(reasoning, content, calls_of([tuple(calls[index]) for index in sorted(calls)]), end)


def cut(text: str, sizes: list[int], lag: int) -> list[tuple[str, list[int]]]:
    """Return pieces of `sizes` tokens. Their text is late by `lag` letters, as if a stop string might begin."""
    tokens, pieces, released, at = tokenizer().encode(text), [], 0, 0
    for number in range(len(tokens)):
        if at >= len(tokens):
            break
        piece = tokens[at : at + sizes[number % len(sizes)]]
        at += len(piece)
        whole = text if at >= len(tokens) else tokenizer().decode(tokens[:at]).rstrip("\ufffd")
        until = len(text) if at >= len(tokens) else max(released, len(whole) - lag)
        pieces.append((text[released:until], piece))
        released = until
    return pieces or [("", [0])]


def both(
    tool: str | None, thought: str | None, text: str, sizes: list[int], lag: int, finish: str, choice: Any, prompt: str
) -> Answer:
    """Return the answer; check that it is the same in one piece and streamed."""

    async def answers() -> tuple[Answer, Answer]:
        handler = serving(tool, thought)
        pieces = cut(text, sizes, lag)
        return (
            await plain(handler, prompt, text, finish, choice),
            await streamed(handler, prompt, pieces, finish, choice),
        )

    whole, pieces = asyncio.run(answers())
    assert whole == pieces
    return whole


@st.composite
def texts(draw: Callable[..., Any], sample: str) -> str:
    """Draw a text of words, markers and calls, some of them cut."""
    pool = [*WORDS, *TEXTS, *MARK.findall(sample), sample, sample]
    parts = []
    for part in draw(st.lists(st.sampled_from(pool), max_size=8)):
        parts.append(part[: draw(st.integers(0, len(part)))] if draw(st.integers(0, 4)) == 0 else part)
    return "".join(parts)


SIZES = st.lists(st.sampled_from([1, 1, 2, 5, 20]), min_size=1, max_size=4)
SETTINGS = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 200, suppress_health_check=list(HealthCheck)
)


@SETTINGS
@given(st.data())
def test_no_text_is_lost_by_parsers_of_calls(data: st.DataObject) -> None:
    """Everything outside calls is text, verbatim and in order, and each call is whole."""
    name = data.draw(st.sampled_from(sorted(SAMPLES)))
    text = data.draw(texts(SAMPLES[name]))
    choice = data.draw(st.sampled_from(["auto", "auto", "required", "none", NAMED]))
    finish = data.draw(st.sampled_from(["stop", "length"]))
    found = both(name, None, text, data.draw(SIZES), data.draw(st.sampled_from([0, 3])), finish, choice, "hi")
    assert found.reasoning == ""
    assert all(isinstance(arguments, dict) for _, arguments in found.calls)
    expected = "tool_calls" if found.calls and finish == "stop" and choice != NAMED else finish
    assert found.finish == expected
    if not found.calls:
        assert found.content == text
    rest = iter(text)
    assert all(letter in rest for letter in found.content)  # a subsequence
    carried = found.content + json.dumps(found.calls)
    assert carried.count("quokka") >= text.count("quokka")


@SETTINGS
@given(st.data())
def test_no_text_is_lost_by_parsers_of_reasoning(data: st.DataObject) -> None:
    from vllm.reasoning import ReasoningParserManager

    name = data.draw(st.sampled_from(sorted(set(ReasoningParserManager.lazy_parsers) - MISSING - {"openai_gptoss"})))
    text = data.draw(texts("<think>Hm.</think>"))
    prompt = data.draw(st.sampled_from(["hi", "<think>", "<think></think>"]))
    found = both(None, name, text, data.draw(SIZES), data.draw(st.sampled_from([0, 3])), "stop", "none", prompt)
    if name not in OWN_LANGUAGE:
        assert (found.reasoning + found.content).count("quokka") == text.count("quokka")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_whole_calls_are_found_wherever_the_answer_is_cut(name: str) -> None:
    calls = [(LIGHT[0], json.loads(LIGHT[1])), (FAN[0], json.loads(FAN[1]))][: 1 if name == "gigachat3" else 2]
    sample = SAMPLES[name]
    whole = both(name, None, sample, [3], 0, "stop", "auto", "hi")
    assert whole == ("", "", calls, "tool_calls")
    for end in range(1, len(sample), 7):
        part = both(name, None, sample[:end], [1, 4], 0, "length", "auto", "hi")
        assert part.finish == "length"
        assert part.calls == calls[: len(part.calls)]
        if not part.calls:
            assert part.content == sample[:end]
    if "\\A" not in SYNTAXES[name][0].begin:
        around = both(name, None, f"Well: {sample} That is all.", [2], 3, "stop", "auto", "hi")
        assert around == ("", "Well:  That is all.", calls, "tool_calls")


@pytest.mark.parametrize("tool", ["pythonic", "jamba"])
def test_required_calls_are_found_wherever_the_answer_is_cut(tool: str) -> None:
    cuts = [both(tool, None, REQUIRED[:end], [3], 0, "length", "required", "hi") for end in range(len(REQUIRED) + 1)]
    assert [len(answer.calls) for answer in cuts if answer.calls][:1] == [1]
    assert cuts[-1].calls == [(LIGHT[0], {"state": "on"}), (FAN[0], {"speed": 2})]
    assert cuts[-1].content == ""
    assert cuts[30].content == REQUIRED[:30]
    assert cuts[-3].content.startswith(', {"name": "set_fan"')


def test_every_parser_of_calls_is_known() -> None:
    from vllm.tool_parsers import ToolParserManager

    assert set(SAMPLES) == set(SYNTAXES)
    assert set(ToolParserManager.lazy_parsers) - set(SYNTAXES) <= MISSING | OWN_LANGUAGE


@pytest.mark.parametrize("tool", ["kimi_k3", "muse_glimmer", "inkling"])
@settings(SETTINGS, max_examples=EXAMPLES // 10)
@given(st.data())
def test_parsers_of_other_markup_answer_the_same_in_one_piece_and_streamed(tool: str, data: st.DataObject) -> None:
    sample = "<|open|>tools<|sep|><|start|>assistant to=user<|message|>hello<|eot|><|message_model|><|content_text|>"
    text = data.draw(texts(sample))
    both(tool, None, text, data.draw(SIZES), data.draw(st.sampled_from([0, 3])), "stop", "auto", "hi")


def test_the_text_is_kept_if_a_parser_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(Hermes2ProToolParser, "extract_tool_calls", broken)
    assert both("hermes", None, SAMPLES["hermes"], [3], 0, "stop", "auto", "hi").content == SAMPLES["hermes"]


DEEP = '{"state": ' + "[" * 3000
"""Arguments nested more deeply than a JSON parser can follow, as by a model that repeats a bracket."""


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        (DEEP, NAMED),
        (f'[{{"name": "set_light", "parameters": {DEEP}}}]', "required"),
        (f'[{{"name": "set_light", "parameters": {DEEP}{"]" * 3000}}}}}]', "required"),
    ],
)
def test_arguments_that_are_nested_too_deeply_are_text(text: str, choice: Any) -> None:
    assert both("jamba", None, text, [200], 0, "length", choice, "hi") == ("", text, [], "length")
