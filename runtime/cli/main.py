"""The entry point: all commands under one name; every failure becomes one line and an exit code."""

import errno
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from runtime.cli import output
from runtime.cli.commands import requests
from runtime.cli.commands.adapters import manage as adapters
from runtime.cli.commands.batches import files, webhooks
from runtime.cli.commands.batches import manage as batches
from runtime.cli.commands.fleet import manage as fleet
from runtime.cli.commands.models import manage as models
from runtime.cli.commands.routing import providers, routers
from runtime.cli.commands.server import backup, inspect, serve
from runtime.cli.commands.server.logs import logs
from runtime.cli.commands.server.options import ServeCommand
from runtime.cli.commands.server.top import top
from runtime.cli.commands.tenants import keys, limits, teams, usage
from runtime.cli.failures import EXIT_CODES, Failure, RefusedError, UsageError
from runtime.cli.options import URL

WORDS = {
    "run": "chat", "pull": "models add", "create": "models add", "launch": "models add", "list": "models list",
    "ls": "models list", "show": "models show", "ps": "status", "stop": "models unload", "rm": "models remove",
    "terminate": "models unload",
}  # fmt: skip
"""Commands of Ollama and Xinference, with their equivalents here."""
SUBCOMMAND_WORDS = {
    "ls": "list", "pull": "add", "create": "add", "register": "add", "launch": "add", "info": "show",
    "stop": "unload", "terminate": "unload", "rm": "remove", "delete": "remove",
}  # fmt: skip
"""Words of other tools after `models`, `adapters` and so on, if the group has the equivalent command."""


class Subcommands(TyperGroup):
    """Suggests the equivalent command for another tool's word."""

    words = SUBCOMMAND_WORDS

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0] if args else ""
        command = self.words.get(word, "")
        if self.get_command(ctx, word) is None and self.get_command(ctx, command.partition(" ")[0]) is not None:
            ctx.fail(f"No such command '{word}'. Did you mean '{command}'?")
        name, found, rest = super().resolve_command(ctx, args)
        if ctx.find_root().params.get("url") and _ignores_url(found) and not {"-h", "--help"} & set(rest):
            ctx.fail(
                f"'{ctx.command_path} {name}' does not talk to a server. Leave --url out; "
                f"'{ctx.command_path} {name} -h' says what it reads."
            )
        return name, found, rest


def _ignores_url(command: Any) -> bool:
    """Return whether it is a command, not a group of them, without the option --url."""
    return not isinstance(command, TyperGroup) and all(option.name != "url" for option in command.params)


class CommandGroup(Subcommands):
    """Turns a Failure from any command into its message and exit code."""

    words = WORDS

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            output.print_failure(failure, bool(ctx.meta.get("json")))
            raise typer.Exit(failure.exit_code) from None
        except (KeyboardInterrupt, typer.Abort):  # Abort comes from a prompt
            output.note("")
            raise typer.Exit(130) from None
        except typer.BadParameter as wrong:
            if not wrong.message:  # the argument is missing
                wrong.message = _what_to_write(wrong)
            raise
        except BrokenPipeError:  # the reader has stopped, as in `roundhouse ... | head`
            _drop_output()
            raise typer.Exit(0) from None
        except UnicodeError:  # comes from the input; printing never raises it, see `main`
            output.print_failure(UsageError("An argument or the input is not valid UTF-8."), bool(ctx.meta.get("json")))
            raise typer.Exit(UsageError.exit_code) from None
        except OSError as error:
            _drop_output_if_unwritable()
            output.print_failure(_refusal(error), bool(ctx.meta.get("json")))
            raise typer.Exit(RefusedError.exit_code) from None


def _drop_output() -> None:
    """Point standard output to nothing, so that Python does not try again at its end to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _drop_output_if_unwritable() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _refusal(error: OSError) -> RefusedError:
    where = f"{error.filename}: " if error.filename is not None else ""
    return RefusedError(f"{where}{error.strerror or error}.")


def _what_to_write(missing: Any) -> str:
    """Return help for a missing argument: its description and an example."""
    description = getattr(missing.param, "help", None) or ""
    _, _, examples = (missing.ctx.command.help or "").partition("Example")
    example = " ".join(examples.partition(":")[2].partition(";")[0].split())
    return f"{description} Such as: {example}" if example else description


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"roundhouse {version('roundhouse')}")
        raise typer.Exit


def common(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="Address of the server, before or after a command that talks to one."),
    ] = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if url is None:
        return
    before = os.environ.get(URL)
    os.environ[URL] = url  # read by every command that has this option

    def restore() -> None:
        if before is None:
            os.environ.pop(URL, None)
        else:
            os.environ[URL] = before

    ctx.call_on_close(restore)


app = typer.Typer(
    name="roundhouse",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""One server for chat models with LoRA adapters, embeddings, rerankers and speech-to-text.

Start it:            [bold]roundhouse serve[/bold]
Talk to it:          [bold]roundhouse chat "hello"[/bold]
See what is loaded:  [bold]roundhouse status[/bold]

Every command has its own --help with examples.
""",
    epilog=EXIT_CODES,
)
app.callback()(common)
app.command(cls=ServeCommand, rich_help_panel="Server", epilog=EXIT_CODES)(serve.serve)
_SERVER = (
    inspect.doctor, inspect.validate, inspect.status, inspect.signal, top, logs, backup.backup, backup.restore,
)  # fmt: skip
_REQUESTS = (requests.chat, requests.embed, requests.rerank, requests.transcribe)
for panel, commands in {"Server": _SERVER, "Requests": _REQUESTS}.items():
    for command in commands:
        app.command(rich_help_panel=panel, epilog=EXIT_CODES)(command)
for panel, groups in {
    "Server": {
        "models": models, "adapters": adapters, "routers": routers, "providers": providers, "teams": teams,
        "keys": keys, "limits": limits, "usage": usage, "fleet": fleet,
    },
    "Requests": {"batch": batches, "files": files, "webhooks": webhooks},
}.items():  # fmt: skip
    for name, group in groups.items():
        app.add_typer(group.app, name=name, cls=Subcommands, rich_help_panel=panel)
app.command(rich_help_panel="Server")(inspect.version)


class ClosedOutput(io.TextIOBase):
    """Standard output that was closed before the start (`>&-`): a result printed there would be lost."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, "Standard output is closed")


def main() -> None:
    """Run `roundhouse`."""
    # Python sets streams that are closed to None
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or ClosedOutput()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # terminals without UTF-8 show '?' instead
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="roundhouse")
    except OSError as error:  # of help and --install-completion; those of commands become exit codes in `CommandGroup`
        _drop_output_if_unwritable()
        output.print_failure(_refusal(error), as_json=False)
        raise SystemExit(RefusedError.exit_code) from None


if __name__ == "__main__":
    main()
