"""`roundhouse chat`, `embed`, `rerank` and `transcribe`."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from registry import errors
from registry.errors import RoundhouseError
from runtime.cli.failures import Failure, RefusedError, ServerError, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, note, print_failure, table
from runtime.cli.remote.client import Client, Json, failure_of, only_model
from runtime.cli.remote.progress import Bar, bar

if TYPE_CHECKING:
    from httpx import Response

PATH = "/v1/chat/completions"
HELP = "/model NAME changes the model, /reset clears the conversation, /exit or Ctrl-D quits. Ctrl-C stops an answer."
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Id or alias; optional if there is only one.", show_default=False),
]


def embed(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; with '-' or none, one per line of standard input.")
    ] = None,
    model: Model = None,
    dimensions: Annotated[int | None, typer.Option(help="Shorten the vectors, if the model supports it.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Turn texts into vectors. Prints the first numbers of each; --json prints all of them.

    Example: roundhouse embed "a black cat" "a dark feline" --json | jq '.data[0].embedding | length'
    """
    result = _texts(texts)
    with Client(url) as client:
        body: Json = {"model": model or only_model(client, "embed"), "input": result}
        if dimensions is not None:
            body["dimensions"] = dimensions
        answer = client.post("/v1/embeddings", body)
    if as_json:
        emit(answer)
        return
    for text, row in zip(result, answer["data"], strict=True):
        vector = row["embedding"]
        first = " ".join(f"{value:+.4f}" for value in vector[:6])
        print(f"{len(vector)} dimensions  {first} ...  {text}")


def rerank(
    query: Annotated[str, typer.Argument(help="The query.", show_default=False)],
    documents: Annotated[list[str] | None, typer.Argument(help="Documents to rank.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One document per line; '-' reads standard input.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", "-n", min=1, help="Print only the best N.")] = None,
    model: Model = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Order documents by how well they answer a query, best first, with scores from 0 to 1.

    Example: roundhouse rerank "how do I undo a commit" --file questions.txt --top 5
    """
    result = list(documents or [])
    if file is not None:
        result += _lines(sys.stdin.read() if str(file) == "-" else _read(file))
    if not result:
        raise UsageError("Give documents after the query, or a file of them with --file.")
    with Client(url) as client:
        body: Json = {"model": model or only_model(client, "rerank"), "query": query, "documents": result}
        if top is not None:
            body["top_n"] = top
        answer = client.post("/v1/rerank", body)
    if as_json:
        emit(answer)
        return
    rows = [[f"{row['relevance_score']:.4f}", str(row["index"]), result[row["index"]]] for row in answer["results"]]
    table(["SCORE", "INDEX", "DOCUMENT"], rows, right=["SCORE", "INDEX"])


def _texts(texts: list[str] | None) -> list[str]:
    if texts and texts != ["-"]:
        return texts
    if not texts and sys.stdin.isatty():
        raise UsageError("Give texts, or pipe them in, one per line.")
    result = _lines(sys.stdin.read())
    if not result:
        raise UsageError("Standard input was empty. Give texts, or pipe them in, one per line.")
    return result


def _lines(text: str) -> list[str]:
    """Return the non-empty lines. Splits only at \\n and \\r\\n, because U+2028 may be part of a text."""
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RefusedError(f"{file} is not text. Give one document per line, in UTF-8.") from None


def transcribe(
    file: Annotated[Path, typer.Argument(help="wav, mp3, flac, ogg, m4a or webm.", show_default=False)],
    model: Model = None,
    format: Annotated[
        Literal["text", "json", "srt", "vtt", "verbose_json"],
        typer.Option("--format", "-f", help="srt and vtt are subtitles."),
    ] = "text",
    language: Annotated[
        str | None,
        typer.Option("--language", "-l", help="Language, such as en or de.", show_default="detected"),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Words or names likely to occur.", show_default=False)] = None,
    words: Annotated[bool, typer.Option("--words", help="Add times of single words; needs verbose_json.")] = False,
    translate: Annotated[bool, typer.Option("--translate", help="Translate into English.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print each part as soon as it is transcribed.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Transcribe a recording.

    Examples: roundhouse transcribe talk.mp3;
    roundhouse transcribe talk.mp3 --format srt > talk.srt;
    roundhouse transcribe talk.mp3 --stream
    """
    if not file.is_file():
        raise RefusedError(f"There is no file {file}.")
    if words and format != "verbose_json":
        raise UsageError("--words needs --format verbose_json.")
    if as_json and format == "text":
        format = "json"
    if as_json and format in ("srt", "vtt"):
        raise UsageError(f"--json cannot be combined with --format {format}, because subtitles are not JSON.")
    if stream and format not in ("text", "json"):
        raise UsageError("--stream supports text only. Leave --format out.")
    path = f"/v1/audio/{'translations' if translate else 'transcriptions'}"
    with Client(url) as client:
        fields: Json = {"model": model or only_model(client, "transcribe"), "response_format": format}
        fields |= {key: value for key, value in (("language", language), ("prompt", prompt)) if value is not None}
        if words:
            fields["timestamp_granularities[]"] = ["word", "segment"]
        if stream:
            _print_stream(client, path, {**fields, "stream": "true"}, file, as_json)
        else:
            _print_transcript(client, path, fields, file, as_json)


def _print_transcript(client: Client, path: str, fields: Json, file: Path, as_json: bool) -> None:
    with bar(not as_json) as progress_bar, progress_bar.open(file) as sound:
        text = client.text("POST", path, data=fields, files={"file": (file.name, sound)})
    if as_json:
        emit(json.loads(text))
    else:
        print(text.rstrip("\n"))


def _print_stream(client: Client, path: str, fields: Json, file: Path, as_json: bool) -> None:
    """Print each part of a transcript as it arrives."""
    with ExitStack() as uploading:
        progress_bar = uploading.enter_context(bar(not as_json))
        with (
            progress_bar.open(file) as sound,
            client.stream("POST", path, data=fields, files={"file": (file.name, sound)}) as response,
        ):
            for event in events(response, progress_bar):
                uploading.close()  # removes the bar before the transcript
                if as_json:
                    emit(event)
                elif event.get("type") == "transcript.text.delta":
                    print(event["delta"], end="", flush=True)
    if not as_json:
        print()


class ChatSession:
    """A conversation with its messages so far and its model."""

    def __init__(self, client: Client, model: str, system: str | None, options: Json) -> None:
        self.client, self.model, self.options = client, model, options
        self.system: list[Json] = [{"role": "system", "content": system}] if system else []
        self.history: list[Json] = []

    def body(self, text: str) -> Json:
        messages = [*self.system, *self.history, {"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, **self.options}

    def say(self, text: str) -> None:
        """Print the answer as it arrives, and store both messages. A turn that fails or is stopped is not stored."""
        parts: list[str] = []
        body, headers = {**self.body(text), "stream": True}, {"X-Roundhouse-Progress": "sse"}
        with ExitStack() as loading:
            progress_bar = loading.enter_context(bar())
            with self.client.stream("POST", PATH, json=body, headers=headers) as response:
                for event in events(response, progress_bar):
                    loading.close()  # removes the bar before the answer
                    for choice in event.get("choices", ()):
                        parts.append(choice.get("delta", {}).get("content") or "")
                        print(parts[-1], end="", flush=True)
        print()
        self.history += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(parts)}]

    def command(self, line: str) -> bool:
        """Run a line that begins with '/'. Returns False if the conversation is over."""
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
            import readline  # noqa: F401 gives input() editing and a history

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
        str | None, typer.Argument(help="The message; '-' reads standard input; without it, start a conversation.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model, adapter, base:adapter or name@alias.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.", show_default=False)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of the answer.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Sampling temperature; 0 always takes the likeliest token.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Sampling seed; the same seed gives the same answer.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send one message, or start a conversation if none is given. Answers are printed as they arrive.

    Examples: roundhouse chat "What is a slot?";
    roundhouse chat -m uppercase "please open the door";
    echo "Hello" | roundhouse chat -m llama-8b:legal --temperature 0
    """
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    options = {key: value for key, value in given.items() if value is not None}
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read().strip()
        if not text:
            raise UsageError("Standard input was empty. Give the text, or pipe it in.")
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


# --- events of an answer ---------------------------------------------------------------------------------------------
_PROGRESS = re.compile(rb"^: (\S+) (.+) (\d+)%$", re.MULTILINE)


def events(response: "Response", progress_bar: Bar) -> Iterator[Json]:
    """Iterate over the objects of the events until the last one. Comments about a load are shown in the bar.

    Raises RefusedError or ServerError for an error event, ServerError for a stream that ends early.
    """
    import httpx
    from httpx_sse import EventSource, SSEError

    # no other headers, because the content is already decompressed
    kind = {"content-type": response.headers.get("content-type", "")}
    plain_response = httpx.Response(
        response.status_code, headers=kind, content=_drawn(response.iter_bytes(), progress_bar)
    )
    try:
        for event in EventSource(plain_response).iter_sse():
            if event.data == "[DONE]":
                return
            result = json.loads(event.data)
            if "error" in result:
                raise failure_of(result, _status(result["error"]))
            yield result
            if result.get("type") == "transcript.text.done":  # the last of a transcription
                return
    except SSEError as error:
        raise ServerError(f"The answer is not an event stream: {error}.") from None
    except ValueError:
        raise ServerError("The answer is not an event stream: an event is not JSON.") from None
    raise ServerError("The answer is incomplete, because its stream ended early. Send the request again.")


def _status(error: Any) -> int:
    """Return the status of an error within a stream, by its code or type; vLLM's code is a number."""
    code, kind = (error.get("code"), error.get("type")) if isinstance(error, dict) else (None, None)
    if isinstance(code, int):
        return code
    kinds = [var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, RoundhouseError)]
    result = [kind for kind in kinds if kind.code == code] or [one for one in kinds if one.type == kind]
    return result[0].status if result else 500


def _drawn(chunks: Iterator[bytes], progress_bar: Bar) -> Iterator[bytes]:
    """Pass the bytes on unchanged, and show their progress comments, which httpx-sse skips."""
    for chunk in chunks:
        for model, phase, percent in _PROGRESS.findall(chunk):
            progress_bar.show(f"{model.decode()}: {phase.decode()}", int(percent) / 100)
        yield chunk
