"""The options of `serve`: one per setting, created from its field when first used.

So other commands need not import pydantic. Variables are only displayed here; the settings read them.
"""

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand

from runtime.cli.failures import UsageError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

GIVEN = "settings"


class ServeCommand(TyperCommand):
    """The command `serve`, with its own options and one for each setting."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise UsageError for a model or an option of `vllm serve`."""
        known = {
            option for parameter in self.get_params(ctx) for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in args:
            option = word.partition("=")[0]
            if not option.startswith("--") or option in known:
                continue
            if advice := for_models(option.removeprefix("--").replace("-", "_")):
                raise UsageError(f"serve has no {option}: {advice}.")
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest:
            raise UsageError(
                f"serve takes no arguments, such as {rest[0]}. Name recipes with --recipes, or add a model later: "
                f"roundhouse models add {rest[0]}"
            )
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*options(), *super().get_params(ctx)]


def given(ctx: typer.Context) -> dict[str, object]:
    """Return the settings given on the command line, not yet validated."""
    result: dict[str, object] = ctx.meta.get(GIVEN, {})
    return result


def for_models(flag: str) -> str:
    """Say where a flag of `vllm serve` goes; '' if it is none."""
    from models.flags import FORMER, NEVER, REPLACEMENTS
    from registry.recipes.validation import VLLM_FIELDS
    from registry.vllm_source import serve_flags

    if flag in VLLM_FIELDS:
        return f"write it as {VLLM_FIELDS[flag]} in the model's recipe"
    if flag in REPLACEMENTS:
        return f"use {REPLACEMENTS[flag]}"
    if flag in NEVER:
        return "leave it out, as no recipe takes it either: docs/migrate.md#from-vllm-serve"
    if flag in FORMER:
        return f"write {FORMER[flag]} below engine.flags in the model's recipe" if FORMER[flag] else "leave it out"
    return "write it below engine.flags in the model's recipe" if flag in serve_flags() else ""


def options() -> list[Any]:
    """Return the options, created by typer from a function with one parameter each."""
    from runtime.config.settings import OptionHelp, Settings

    def command(**_: object) -> None: ...

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            _parameter(name, field, help_entry)
            for name, field in Settings.model_fields.items()
            for help_entry in field.metadata
            if isinstance(help_entry, OptionHelp)
        ]
    )
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app).params


def _parameter(name: str, field: "FieldInfo", help_entry: Any) -> inspect.Parameter:
    bounds = {end: getattr(m, key) for m in field.metadata for end, key in _BOUNDS if hasattr(m, key)}
    dashed = name.replace("_", "-")
    option = typer.Option(
        f"--{dashed}/--no-{dashed}" if field.annotation is bool else f"--{dashed}",
        envvar=f"ROUNDHOUSE_{name.upper()}",
        help=field.description,
        show_default=help_entry.default or True,
        rich_help_panel=help_entry.panel,
        callback=_keep,
        expose_value=False,
        **bounds,
    )
    kind, default = _typed(field)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


_BOUNDS = (("min", "ge"), ("max", "le"))


def _typed(field: "FieldInfo") -> tuple[Any, object]:
    """Return the type and default of an option for typer."""
    from pathlib import Path

    from registry.bounds import Bounds
    from registry.byte_size import ByteSize

    match field.annotation, field.get_default():
        case _, ByteSize() as size:
            return str, size.human_readable().replace(".0", "")
        case kind, _ if kind == tuple[Path, ...]:
            return list[Path] | None, None
        case kind, _ if kind == tuple[str, ...]:
            return list[str] | None, None
        case kind, _ if kind is Bounds:
            return list[str] | None, None
        case kind, _ if kind in (ByteSize | None, tuple[ByteSize, ...], Path):
            return str | None, None
        case kind, default:
            return kind, default


def _keep(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    source = ctx.get_parameter_source(param.name or "")
    if source is not None and source.name == "COMMANDLINE":
        ctx.meta.setdefault(GIVEN, {})[param.name] = value
    return value
