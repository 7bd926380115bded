"""`roundhouse chat`: one question, or a conversation."""

import contextlib
import sys
from typing import Annotated

import typer

from runtime.cli.failures import Failure, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, note, print_failure
from runtime.cli.remote.client import Client, Json, only_model
from runtime.cli.remote.events import events
from runtime.cli.remote.progress import bar

PATH = "/v1/chat/completions"
HELP = "/model NAME changes the model, /reset forgets what was said, /exit or Ctrl-D ends. Ctrl-C stops an answer."


class ChatSession:
    """A conversation: its messages so far, and its model."""

    def __init__(self, client: Client, model: str, system: str | None, options: Json) -> None:
        self.client, self.model, self.options = client, model, options
        self.system: list[Json] = [{"role": "system", "content": system}] if system else []
        self.history: list[Json] = []

    def body(self, text: str) -> Json:
        messages = [*self.system, *self.history, {"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, **self.options}

    def say(self, text: str) -> None:
        """Print the answer as it comes and remember both sides. A turn that fails or is stopped is forgotten."""
        parts: list[str] = []
        body, headers = {**self.body(text), "stream": True}, {"X-Roundhouse-Progress": "sse"}
        with contextlib.ExitStack() as loading:
            progress_bar = loading.enter_context(bar())
            with self.client.stream("POST", PATH, json=body, headers=headers) as response:
                for event in events(response, progress_bar):
                    loading.close()  # the bar makes room for the answer
                    for choice in event.get("choices", ()):
                        parts.append(choice.get("delta", {}).get("content") or "")
                        print(parts[-1], end="", flush=True)
        print()
        self.history += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(parts)}]

    def command(self, line: str) -> bool:
        """Carry out a line that begins with '/'. False: the conversation is over."""
        word, _, rest = line.partition(" ")
        match word:
            case "/exit" | "/quit":
                return False
            case "/reset":
                self.history.clear()
            case "/model" if rest.strip():
                self.model = rest.strip()
            case _:
                note(HELP)
        return True

    def interactive(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 input() then has editing and a history

        note(f"{self.model}. {HELP}")
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                note("")
                return
            if line.startswith("/"):
                if not self.command(line):
                    return
            elif line:
                try:
                    self.say(line)
                except KeyboardInterrupt:
                    note(" (stopped)")
                except Failure as failure:
                    print_failure(failure, as_json=False)


def chat(
    text: Annotated[
        str | None, typer.Argument(help="What to say; '-' reads standard input; none: a conversation.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model, adapter, base:adapter or name@alias.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.", show_default=False)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: always the likeliest.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same answer again.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask one question, or hold a conversation when none is given. Answers are printed as they come.

    Examples: roundhouse chat "What is a slot?";
    roundhouse chat -m uppercase "please open the door";
    echo "Hello" | roundhouse chat -m llama-8b:legal --temperature 0
    """
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    options = {key: value for key, value in given.items() if value is not None}
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read().strip()
        if not text:
            raise UsageError("Nothing came on standard input. Give the text, or pipe it in.")
    if text is None and as_json:
        raise UsageError("A conversation has no JSON. Give the text with --json.")
    with Client(url) as client:
        talk = ChatSession(client, model or only_model(client, "chat"), system, options)
        if text is None:
            talk.interactive()
        elif as_json:
            emit(client.post(PATH, talk.body(text)))
        else:
            talk.say(text)
