"""`roundhouse transcribe`: speech to text."""

import json
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit
from runtime.cli.remote.client import Client, only_model
from runtime.cli.remote.events import events
from runtime.cli.remote.progress import bar


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"
    VERBOSE_JSON = "verbose_json"


def transcribe(
    file: Annotated[Path, typer.Argument(help="wav, mp3, flac, ogg, m4a or webm.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Id or alias; may be left out where there is only one.", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="srt and vtt are subtitles.")] = Format.TEXT,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="Such as en or de; none: detected.", show_default=False)
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Words or names that are likely.", show_default=False)] = None,
    words: Annotated[bool, typer.Option("--words", help="Times of single words; needs verbose_json.")] = False,
    translate: Annotated[bool, typer.Option("--translate", help="Into English.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print each part as soon as it is known.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write down what is said in a recording.

    Examples: roundhouse transcribe talk.mp3;
    roundhouse transcribe talk.mp3 --format srt > talk.srt;
    roundhouse transcribe talk.mp3 --stream
    """
    if not file.is_file():
        raise RefusedError(f"There is no file {file}.")
    if words and format is not Format.VERBOSE_JSON:
        raise UsageError("--words needs --format verbose_json.")
    if as_json and format is Format.TEXT:
        format = Format.JSON
    if as_json and format in (Format.SRT, Format.VTT):
        raise UsageError(f"--json does not go with --format {format}: subtitles are no JSON.")
    if stream and format not in (Format.TEXT, Format.JSON):
        raise UsageError("--stream carries text only. Leave --format out.")
    kind = "translations" if translate else "transcriptions"
    with ExitStack() as stack:
        client = stack.enter_context(Client(url))
        fields: dict[str, Any] = {"model": model or only_model(client, "transcribe"), "response_format": format.value}
        fields |= {key: value for key, value in (("language", language), ("prompt", prompt)) if value is not None}
        if words:
            fields["timestamp_granularities[]"] = ["word", "segment"]
        if stream:
            fields["stream"] = "true"
        uploading = stack.enter_context(ExitStack())
        progress_bar = uploading.enter_context(bar(not as_json))
        sound = stack.enter_context(progress_bar.open(file))
        request: dict[str, Any] = {"data": fields, "files": {"file": (file.name, sound)}}
        if not stream:
            text = client.text("POST", f"/v1/audio/{kind}", **request)
            uploading.close()
            if as_json:
                emit(json.loads(text))
            else:
                print(text.rstrip("\n"))
            return
        with client.stream("POST", f"/v1/audio/{kind}", **request) as response:
            for event in events(response, progress_bar):
                uploading.close()
                if as_json:
                    emit(event)
                elif event.get("type") == "transcript.text.delta":
                    print(event["delta"], end="", flush=True)
        if not as_json:
            print()
