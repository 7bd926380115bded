"""Check the tokenizer and chat template that a trainer saved with an adapter.

The engine uses the base's tokenizer, so the adapter's must give its tokens the same ids. A chat template that differs
from the base's becomes part of the adapter and formats its requests.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from adapters.content.forms import CONFIG, MOST, TEMPLATE_FILE
from registry.base.wording import first_line

MOST_TEMPLATE = 256 << 10
"""Longest chat template, in characters; long ones have 20 KB."""
TEMPLATE = "chat_template"
"""Field of the stored adapter_config.json that holds the adapter's own template."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
HELLO = "Hello"
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": HELLO}],
    [{"role": "user", "content": [{"type": "text", "text": HELLO}]}],
)


class TokenizerFindings(NamedTuple):
    """The result. `template`: the adapter's own chat template, or empty to use the base's."""

    faults: list[str]
    notes: list[str]
    template: str = ""


def examine_tokenizer(folder: Path, base: Path, *, trusted: bool) -> TokenizerFindings:
    """Compare an adapter's tokenizer and chat template with the base's.

    trusted: the adapter may bring a chat template, which is a program. Files that are not a tokenizer have no faults,
    because nothing uses them.
    """
    faults, notes = _compare(_read(folder / "tokenizer.json"), _read(base / "tokenizer.json"))
    template = read_template(folder)
    if not template or template.strip() == read_template(base).strip():
        return TokenizerFindings(faults, notes)
    if not trusted:
        notes.append(
            "Its chat template differs from the base's, and is not used, because a template is a program. Register "
            "it with a key that has the scope 'models', or list it in the base's recipe."
        )
    elif (base / "tekken.json").is_file() and not read_template(base):
        notes.append("Its chat template is not used, because the base's own tokenizer formats the prompts.")
    elif fault := _render_fault(template, _special_tokens(folder, base)):
        faults.append(fault)
    else:
        notes.append("Requests to it are formatted with its own chat template, which differs from the base's.")
        return TokenizerFindings(faults, notes, template)
    return TokenizerFindings(faults, notes)


def _compare(own: dict[str, Any], theirs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return faults and notes on an adapter's tokenizer."""
    tokens, known = _tokens(own), _tokens(theirs)
    if not tokens or not known:
        return [], []
    faults = []
    if more := sorted(tokens.keys() - known.keys()):
        faults.append(
            f"Its tokenizer has {len(more)} tokens that the base lacks ({_few(more)}), and an adapter brings no rows "
            "of the embedding for them. Train with the base's own tokenizer, or merge it and serve that model."
        )
    if moved := sorted(token for token in tokens.keys() & known.keys() if tokens[token] != known[token]):
        faults.append(
            f"Its tokenizer gives {len(moved)} tokens other ids than the base's ({_few(moved)}): the adapter was "
            "trained on another model, or with another tokenizer."
        )
    split = [part for part in ("normalizer", "pre_tokenizer") if own.get(part) != theirs.get(part)]
    notes = [f"Its tokenizer splits texts differently ({' and '.join(split)}), and is not used."]
    return faults, notes if split and not faults else []


def _few(tokens: list[str]) -> str:
    return ", ".join(map(repr, tokens[:5])) + (", ..." if len(tokens) > 5 else "")


def _tokens(tokenizer: dict[str, Any]) -> dict[str, object]:
    """Map tokens to ids."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens: dict[str, object] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):  # pieces with scores
        tokens = {str(piece[0]): number for number, piece in enumerate(vocabulary) if isinstance(piece, list) and piece}
    return tokens | {str(one.get("content")): one.get("id") for one in _objects(tokenizer.get("added_tokens"))}


def read_template(folder: Path) -> str:
    """Return the chat template of a folder. Stored adapters have it in their configuration."""
    file = folder / TEMPLATE_FILE
    if file.is_file() and not file.is_symlink() and file.stat().st_size <= MOST:
        return file.read_text(encoding="utf-8", errors="replace")
    for name in ("tokenizer_config.json", "chat_template.json", CONFIG):
        template = _read(folder / name).get(TEMPLATE)
        if isinstance(template, list):
            template = {one.get("name"): one.get("template") for one in _objects(template)}.get("default")
        if isinstance(template, str) and template:
            return template
    return ""


def own_template(stored: Path) -> str:
    """Return the chat template of a stored adapter; empty if it has none of its own."""
    template = _read(stored / CONFIG).get(TEMPLATE)
    return template if isinstance(template, str) else ""


def _render_fault(template: str, tokens: dict[str, str]) -> str:
    """Return why a template cannot format a user's message; empty if it can.

    It is rendered in jinja2's sandbox.
    """
    from transformers.utils.chat_template_utils import (
        render_jinja_template,
    )  # takes seconds, and few adapters have a template

    if len(template) > MOST_TEMPLATE:
        return f"Its chat template has {len(template)} characters, over the limit of {MOST_TEMPLATE}."
    fault = ""
    for messages in CONVERSATIONS:
        try:
            rendered = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **tokens)
        except TimeoutError:
            raise
        except Exception as error:
            fault = fault or f"({type(error).__name__}: {first_line(error)})"
        else:
            if HELLO in str(rendered):
                return ""
            fault = fault or "(it omits the message)"
    return f"Its chat template cannot format a user's message {fault}: correct it, or remove it to use the base's."


def _special_tokens(folder: Path, base: Path) -> dict[str, str]:
    given = _read(base / "tokenizer_config.json") | _read(folder / "tokenizer_config.json")
    values = {name: given.get(name) for name in SPECIAL}
    return {
        name: str(value.get("content", "")) if isinstance(value, dict) else str(value or "")
        for name, value in values.items()
    }


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file() or file.is_symlink() or file.stat().st_size > MOST:
            return {}
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
