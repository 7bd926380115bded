"""Tokenizers and chat templates in adapters' folders."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.check_process import check
from adapters.content.forms import CONFIG
from adapters.content.tokenizer import examine_tokenizer, own_template
from adapters.jobs import CheckAnswer, Job
from adapters.types import Base
from registry.bounds import Bounds
from tests.unit.adapters.makers import write_adapter, write_base

TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
OWN = "{% for message in messages %}{% generation %}<{{ message.content }}>{% endgeneration %}{% endfor %}"
CONFIGURATION = "tokenizer_config.json"


def write_tokenizer(folder: Path, *tokens: str, first: int = 0, split: str = "ByteLevel") -> None:
    added = [{"content": token, "id": first + number} for number, token in enumerate(("<|end|>", *tokens))]
    whole = {"added_tokens": added, "model": {"vocab": {"a": 90, "b": 91}}, "pre_tokenizer": {"type": split}}
    (folder / "tokenizer.json").write_text(json.dumps(whole))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = write_base(tmp_path_factory.mktemp("base"))
    write_tokenizer(folder)
    (folder / CONFIGURATION).write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE}))
    return Base("base", folder, 16)


def judge(folder: Path, base: Base, out: Path | None = None, *, trusted: bool = True) -> CheckAnswer:
    if out is not None:
        out.mkdir()
    return check(Job(source=folder, base=base, bounds=Bounds(), out=out, trusted=trusted))


FORMS: dict[str, Callable[[Path], object]] = {
    "file": lambda folder: (folder / "chat_template.jinja").write_text(OWN),
    "field": lambda folder: (folder / CONFIGURATION).write_text(json.dumps({"chat_template": OWN})),
    "file of a processor": lambda folder: (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": OWN})
    ),
    "named": lambda folder: (folder / CONFIGURATION).write_text(
        json.dumps({"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": OWN}]})
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_adapters_own_template_is_stored_with_it(base: Base, tmp_path: Path, form: str) -> None:
    plain = judge(write_adapter(tmp_path / "it"), base)
    FORMS[form](tmp_path / "it")
    answer = judge(tmp_path / "it", base, tmp_path / "out")
    assert answer.outcome == "fit", answer.faults
    assert own_template(tmp_path / "out") == OWN
    assert answer.digest != plain.digest
    assert any("formatted with its own chat template" in note for note in answer.notes)
    again = judge(tmp_path / "out", base)
    assert again.digest == answer.digest, "its stored form is the same adapter"


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_tokenizer(folder),
        lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATE + "\n"),
        lambda folder: (folder / CONFIGURATION).write_text("[1"),
    ],
    ids=["tokenizer", "same template", "not JSON"],
)
def test_the_bases_own_template_changes_nothing(base: Base, tmp_path: Path, write: Callable[[Path], None]) -> None:
    plain = judge(write_adapter(tmp_path / "it"), base)
    write(tmp_path / "it")
    assert judge(tmp_path / "it", base) == plain


def test_a_template_is_ignored_if_the_caller_may_not_add_models(base: Base, tmp_path: Path) -> None:
    plain = judge(write_adapter(tmp_path / "it"), base)
    (tmp_path / "it" / "chat_template.jinja").write_text(OWN)
    answer = judge(tmp_path / "it", base, trusted=False)
    assert answer.digest == plain.digest
    assert any("a template is a program" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "cannot format a user's message (TemplateSyntaxError"),
        ("You are a pirate.", "it omits the message"),
        ("{{ raise_exception('no users') }}", "no users"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{# " + "x" * (256 << 10) + " #}{{ messages }}", "over the limit"),
    ],
    ids=["syntax", "no message", "refuses", "class", "changes", "long"],
)
def test_a_template_that_writes_no_prompt_is_refused(base: Base, tmp_path: Path, template: str, words: str) -> None:
    write_adapter(tmp_path / "it")
    (tmp_path / "it" / "chat_template.jinja").write_text(template)
    answer = judge(tmp_path / "it", base)
    assert answer.outcome == "unfit"
    assert words in " ".join(answer.faults)


def test_a_tokenizer_with_more_tokens_is_refused_with_their_names(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it")
    write_tokenizer(tmp_path / "it", "<|im_start|>", "<|im_end|>")
    faults = " ".join(judge(tmp_path / "it", base).faults)
    assert "2 tokens that the base lacks ('<|im_end|>', '<|im_start|>')" in faults


def test_a_tokenizer_with_other_ids_is_refused(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it")
    write_tokenizer(tmp_path / "it", first=7)
    assert "gives 1 tokens other ids than the base's ('<|end|>')" in " ".join(judge(tmp_path / "it", base).faults)


def test_pieces_with_scores_have_their_places_as_ids(tmp_path: Path) -> None:
    """As in the tokenizers of T5 and XLM-RoBERTa, whose vocabularies are lists."""
    own, base = tmp_path / "own", tmp_path / "base"
    for folder, pieces in (
        (own, [["<unk>", 0.0], ["b", -1.0], [], ["a", -2.0]]),
        (base, [["<unk>", 0.0], ["a", -2.0]]),
    ):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": pieces}}))
    more, moved = examine_tokenizer(own, base, trusted=False).faults
    assert "1 tokens that the base lacks ('b')" in more
    assert "1 tokens other ids than the base's ('a')" in moved
    assert examine_tokenizer(base, base, trusted=False).faults == []


def test_a_tokenizer_that_splits_differently_is_noted(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it")
    write_tokenizer(tmp_path / "it", split="Whitespace")
    answer = judge(tmp_path / "it", base)
    assert answer.outcome == "fit"
    assert "splits texts differently (pre_tokenizer), and is not used" in " ".join(answer.notes)


def test_an_adapters_config_cannot_declare_itself_trusted(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it", settings={"chat_template": OWN})
    assert judge(tmp_path / "it", base, tmp_path / "out", trusted=False).outcome == "fit"
    assert own_template(tmp_path / "out") == ""
    assert (tmp_path / "out" / CONFIG).is_file()
