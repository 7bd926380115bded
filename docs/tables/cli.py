"""The command line's help: one section per command, and the options of `serve`."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.core import TyperArgument, TyperGroup, TyperOption

from docs.tables.markdown import code, table
from runtime.cli.main import app

SHARED = ("help", "url", "as_json")
"""Options of many commands, which the page explains once."""


def commands() -> str:
    """Return every command with its arguments and options, in the order of the help."""
    return "\n\n".join(_section(name, command) for name, command in walk(typer.main.get_command(app), "roundhouse"))


def settings() -> str:
    """Return option, variable, default and meaning of each setting."""
    serve = dict(walk(typer.main.get_command(app), "roundhouse"))["roundhouse serve"]
    options = [p for p in parameters(serve) if isinstance(p, TyperOption) and p.name not in SHARED]
    rows = [(_spelling(o), code(str(o.envvar or "")), _default(o), o.help or "") for o in options]
    return table(("option", "variable", "default", "meaning"), rows)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from walk(inner, f"{name} {word}")
    else:
        yield name, command


def parameters(command: Any) -> list[Any]:
    """Return arguments and options, including those of `serve`, which are created on demand."""
    return list(command.get_params(typer.Context(command)))


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in parameters(command) if isinstance(p, TyperOption) and p.name not in SHARED]
    words = [a.metavar or str(a.name).upper() for a in arguments]
    usage = " ".join([name, *(w if a.required else f"[{w}]" for w, a in zip(words, arguments, strict=True))])
    parts = [f"### {name}", f"```\n{usage}{' [OPTIONS]' if options else ''}\n```", *_prose(command.help or "")]
    rows = [(code(word), "", a.help or "") for word, a in zip(words, arguments, strict=True)]
    rows += [(_spelling(o), _default(o), o.help or "") for o in options]
    if name == "roundhouse serve":
        parts.append("Its options are in [settings](settings.md).")
    elif rows:
        parts.append(table(("", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, with its examples, which are separated by ';', as a code block."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        plain = re.sub(r"\[/?bold\]", "", " ".join(paragraph.split()))
        examples = re.match(r"Examples?: (.+)", plain)
        yield "```\n" + "\n".join(examples[1].split("; ")) + "\n```" if examples else plain


def _spelling(option: TyperOption) -> str:
    on = sorted(option.opts, key=len, reverse=True)
    return code(", ".join(on) + (f" / {option.secondary_opts[0]}" if option.secondary_opts else ""))


def _default(option: TyperOption) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if option.required:
        return "required"
    if value is None or value is False or callable(value):
        return ""
    return code("on" if value is True else str(getattr(value, "value", value)))
