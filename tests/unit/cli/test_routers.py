"""`roundhouse routers` and `providers`: the calls, training on this machine, and the output."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing.intents.model import from_bytes
from runtime.cli.commands.routing import fit
from runtime.cli.failures import RefusedError
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest

WHERE = {"weather": ("rain", "snow", "wind", "sun"), "money": ("euros", "dollars", "bills", "rent")}
FORMS = ("is there {} today", "tell me of the {}", "{} again", "how much {} is it", "what about {} then", "{} please")


def router(**more: Any) -> dict[str, Any]:
    """Return a router in the server's format."""
    version = {"version": "v1", "digest": "sha256:" + "0" * 64, "created": 1.0, "bytes": 1, "source": "request"}
    definition = {
        "id": "support",
        "targets": [{"name": "small"}, {"name": "big", "price": 3.0}],
        "default": "small",
        "intents": {"routes": {"weather": ["small"], "money": ["big"]}, "threshold": 0.5},
    }
    return {
        "object": "router", "name": "support", "version": "v1", "digest": "sha256:" + "0" * 64, "versions": [version],
        "aliases": {"prod": "v1"}, "models": [], "definition": definition, "prices": {"small": 1.0, "big": 3.0}, **more,
    }  # fmt: skip


def write_examples(folder: Path, *, target: bool = False) -> Path:
    rows = [
        {"text": form.format(word), ("target" if target else "intent"): {"weather": "small", "money": "big"}[label]
         if target else label}
        for label, words in WHERE.items() for form in FORMS for word in words
    ]  # fmt: skip
    rows += [] if target else [{"text": f"nothing of {n} that", "intent": None} for n in range(12)]
    file = folder / "examples.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def fitted(server: FakeServer, run: Run, folder: Path, *options: str) -> Any:
    server.on("GET", "/v1/routers/support", router())
    server.on("PUT", "/v1/routers/support/fitted/intents", router(version="v2"))
    return run("routers", "fit", "support", str(write_examples(folder)), *options)


def test_fit_trains_on_this_machine_and_sends_the_model(server: FakeServer, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "confusion.svg"
    result = fitted(server, run, tmp_path, "--picture", str(picture), "--precision", "0.9")
    assert result.exit_code == 0, result.output
    assert "v2 is now current" in result.stdout
    assert "by letters, on " in result.stdout
    sent = base64.b64decode(server.received[-1].json["safetensors"])
    model: Any = from_bytes(sent)
    assert (model.predict("rain again please").label, model.predict("how much rent").label) == ("weather", "money")
    assert picture.read_text().lstrip().startswith("<svg")


def test_a_fit_that_changes_nothing_says_so(server: FakeServer, run: Run, tmp_path: Path) -> None:
    result = fitted(server, run, tmp_path, "--dry-run", "--json")
    reported = json.loads(result.stdout)
    assert (reported["kind"], reported["version"]) == ("intents", "v1")
    assert [one["features"] for one in reported["measured"]] == ["letters"]
    assert [received.method for received in server.received] == ["GET"]


def test_fit_uses_the_servers_embedding_model(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("POST", "/v1/embeddings", embed)
    result = fitted(server, run, tmp_path, "--embedding", "vectors", "--json")
    assert result.exit_code == 0, result.output
    assert [one["features"] for one in json.loads(result.stdout)["measured"]] == ["letters", "letters and vector"]


def test_fit_cuts_long_texts_as_the_server_does(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """A text longer than the embedding model's context used to end it with the server's error."""
    server.on("POST", "/v1/embeddings", embed)
    file = write_examples(tmp_path)
    file.write_text(f"{file.read_text()}\n{json.dumps({'text': 'of the rain ' * 5000, 'intent': 'weather'})}")
    server.on("GET", "/v1/routers/support", router())
    server.on("PUT", "/v1/routers/support/fitted/intents", router(version="v2"))
    assert run("routers", "fit", "support", str(file), "--embedding", "vectors").exit_code == 0
    (received,) = [received.json for received in server.received if received.method == "POST"]
    assert (received["truncate"], max(map(len, received["input"]))) == (True, 2000)


def test_fit_with_another_embedding_model_says_where_to_write_it(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """The server would embed with one model and classify by the other one's vectors."""
    definition = {**router()["definition"], "intents": {"embedding": "own"}}
    server.on("GET", "/v1/routers/support", router(definition=definition))
    server.on("POST", "/v1/embeddings", embed)
    refused = run("routers", "fit", "support", str(write_examples(tmp_path)), "--embedding", "vectors")
    assert refused.exit_code == 1
    assert "Write `embedding: vectors` into its `intents`" in " ".join(refused.stderr.split())
    assert (
        run("routers", "fit", "support", str(write_examples(tmp_path)), "--embedding", "vectors", "--dry-run").exit_code
        == 0
    )


def embed(received: ReceivedRequest) -> Answer:
    """Answer with vectors that differ for texts about rain and about rent."""
    rows = [np.eye(4, dtype="<f4")[sum(w in text for w in WHERE["money"])] for text in received.json["input"]]
    return Answer({"data": [{"embedding": base64.b64encode(row.tobytes()).decode()} for row in rows]})


def write_judgements(folder: Path) -> Path:
    rows = [
        {"text": form.format(word), "accepted": {"small": int(label == "weather"), "big": 1 if n else 0}}
        for label, words in WHERE.items()
        for form in FORMS
        for n, word in enumerate(words)
    ]
    file = folder / "judgements.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def serve_complexity(server: FakeServer) -> None:
    definition = {**router()["definition"], "complexity": {}}
    server.on("GET", "/v1/routers/support", router(definition=definition))
    server.on("PUT", "/v1/routers/support/fitted/complexity", router(version="v2"))
    server.on("POST", "/v1/embeddings", embed)


def test_fit_of_complexity_prints_costs(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """It also chooses a threshold for each kind of features, because each has its own scale."""
    serve_complexity(server)
    file = write_judgements(tmp_path)
    reported = json.loads(run("routers", "fit", "support", str(file), "--embedding", "vectors", "--json").stdout)
    assert reported["kind"] == "complexity"
    model: Any = from_bytes(base64.b64decode(server.received[-1].json["safetensors"]))
    letters, both = reported["measured"]
    assert [one["features"] for one in reported["measured"]] == ["letters", "letters and vector"]
    for one, threshold in ((letters, model.threshold_for(None)), (both, model.threshold_for(np.eye(4)[0]))):
        points = one["curve"]
        assert all(1.0 <= point["price"] <= 3.0 for point in points), "by the server's prices"
        best = max(point["accepted"] for point in points)
        assert threshold == one["threshold"]
        (chosen,) = [point for point in points if point["threshold"] == threshold]
        assert chosen["accepted"] >= best - 0.01
        assert chosen["price"] == min(point["price"] for point in points if point["accepted"] >= best - 0.01)
    assert letters["curve"] != both["curve"]
    assert "chosen: " in run("routers", "fit", "support", str(file)).stdout


def test_fit_of_complexity_takes_verdicts_of_any_value(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """No row was held out if each had verdicts of its own, and the error asked for more rows."""
    serve_complexity(server)
    file = write_judgements(tmp_path)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for number, row in enumerate(rows):
        shift = number / len(rows) / 4
        row["accepted"] = {name: 1 - shift if value >= 0.5 else shift for name, value in row["accepted"].items()}
    file.write_text("\n".join(map(json.dumps, rows)))
    result = run("routers", "fit", "support", str(file))
    assert result.exit_code == 0, result.output


def test_fit_of_complexity_ignores_labels(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """Rows with judgements often have a number of their own in that field."""
    serve_complexity(server)
    file = write_judgements(tmp_path)
    rows = [{**json.loads(line), "label": 3} for line in file.read_text().splitlines()]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert run("routers", "fit", "support", str(file)).exit_code == 0


def test_fit_of_complexity_holds_out_the_given_examples(server: FakeServer, run: Run, tmp_path: Path) -> None:
    serve_complexity(server)
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"text": "is there rain today", "accepted": {"small": 0, "big": 0}}))
    result = run("routers", "fit", "support", str(write_judgements(tmp_path)), "--held-out", str(held), "--json")
    (letters,) = json.loads(result.stdout)["measured"]
    assert {point["accepted"] for point in letters["curve"]} == {0.0}, "on that one row"


@pytest.mark.parametrize("option", [("--precision", "0.9"), ("--picture", "x.svg")])
def test_fit_refuses_options_that_only_intents_have(
    server: FakeServer, run: Run, tmp_path: Path, option: tuple[str, str]
) -> None:
    serve_complexity(server)
    result = run("routers", "fit", "support", str(write_judgements(tmp_path)), *option)
    assert result.exit_code == 2
    assert "for examples of intents" in result.stderr
    assert not server.received


@pytest.mark.parametrize("kind", ["intents", "complexity"])
def test_fit_for_a_missing_stage_says_what_to_add(server: FakeServer, run: Run, tmp_path: Path, kind: str) -> None:
    server.on("GET", "/v1/routers/support", router(definition={"id": "support", "targets": [{"name": "small"}]}))
    file = str(write_examples(tmp_path) if kind == "intents" else write_judgements(tmp_path))
    result = run("routers", "fit", "support", file)
    assert result.exit_code == 1
    assert f"has no `{kind}`" in result.stderr
    assert f"Write `{kind}: {{" in result.stderr
    assert [received.method for received in server.received] == ["GET"], "nothing was trained or sent"
    assert run("routers", "fit", "support", file, "--dry-run").exit_code == 0


def test_fit_of_a_version_says_that_it_makes_one(server: FakeServer, run: Run, tmp_path: Path) -> None:
    result = run("routers", "fit", "support@v1", str(write_examples(tmp_path)))
    assert result.exit_code == 2
    assert "without a version" in result.stderr


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("{", "not JSON"),
        ('{"intent": "a"}', '"text"'),
        ("", "no examples"),
        ('{"text": "a", "intent": "b"}', "two"),
        ('{"text": "a", "label": 3}', 'x.jsonl:1: "intent" must be a name in quotes'),
    ],
    ids=["half", "no text", "empty", "one intent", "a number"],
)
def test_fit_says_what_is_wrong_with_a_file(
    server: FakeServer, run: Run, tmp_path: Path, lines: str, word: str
) -> None:
    server.on("GET", "/v1/routers/support", router())
    file = tmp_path / "x.jsonl"
    file.write_text(lines)
    result = run("routers", "fit", "support", str(file))
    assert result.exit_code != 0
    assert word in result.stderr


@pytest.mark.parametrize("words", [("add",), ("fit", "auto"), ("eval", "auto")], ids=lambda words: words[0])
def test_a_missing_file_is_named_once(run: Run, words: tuple[str, ...]) -> None:
    done = run("routers", *words, "none.yaml")
    assert (done.exit_code, done.stderr) == (1, "error: none.yaml: No such file or directory.\n")


@pytest.mark.parametrize("value", [5, -0.1, "much", float("nan")])
def test_fit_refuses_invalid_shares(server: FakeServer, run: Run, tmp_path: Path, value: Any) -> None:
    serve_complexity(server)
    file = write_judgements(tmp_path)
    file.write_text(f"{file.read_text()}\n{json.dumps({'text': 'a', 'accepted': {'small': value}})}")
    result = run("routers", "fit", "support", str(file))
    assert result.exit_code == 1
    assert 'Values of "accepted" must be numbers from 0 to 1' in result.stderr
    assert [received.method for received in server.received] == ["GET"]


def test_fit_of_complexity_uses_only_the_routers_targets(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """The threshold used to be chosen for a target that is never used."""
    serve_complexity(server)
    file = write_judgements(tmp_path)
    file.write_text(file.read_text().replace('"big"', '"bigg"'))
    result = run("routers", "fit", "support", str(file))
    assert result.exit_code == 1
    assert "'bigg' is not a target of 'support'. There are: big, small." in result.stderr


def test_fit_prints_intents_without_a_route(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = write_examples(tmp_path)
    file.write_text(file.read_text().replace('"money"', '"funds"'))
    server.on("GET", "/v1/routers/support", router())
    result = run("routers", "fit", "support", str(file), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "There is no route for funds" in result.stderr
    assert "No route" not in run("routers", "fit", "support", str(write_examples(tmp_path)), "--dry-run").stderr


def test_fit_uses_texts_without_an_intent_only_to_measure(server: FakeServer, run: Run, tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text('{"text": "what a day"}\n')
    result = fitted(server, run, tmp_path, "--held-out", str(held))
    assert result.exit_code == 0, result.output
    assert "of no intent, left out 100.0%\n" in result.stdout


def test_half_an_emoji_is_an_unknown_character(tmp_path: Path) -> None:
    """Training ended with a traceback."""
    file = tmp_path / "examples.jsonl"
    file.write_text(r'{"text": "is it \ud83d", "intent": "weather"}')
    assert fit.rows(file) == [{"text": "is it ?", "intent": "weather"}]


def test_lines_end_only_where_json_lines_end(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\ufeff{"text": "a\u2028b"}\r\n\n{"text": "c"}\n', encoding="utf-8")
    assert [row["text"] for row in fit.rows(file)] == ["a\u2028b", "c"]


def test_a_file_with_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MAX_LINES", 2)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(RefusedError, match="more than 2 lines"):
        fit.rows(file)


def test_eval_decides_as_the_server_would(server: FakeServer, run: Run, tmp_path: Path) -> None:
    fitted(server, run, tmp_path)
    model = server.received[-1].json["safetensors"]
    server.on("GET", "/v1/routers/support", router(models=["intents"]))
    server.on("GET", "/v1/routers/support/fitted/intents", {"safetensors": model})
    result = run("routers", "eval", "support", str(write_examples(tmp_path)), "--json")
    reported = json.loads(result.stdout)
    assert reported["router"] == "support@v1"
    assert reported["rows"] == 60
    assert reported["right"] > 0.9
    assert {pair["target"] for pair in reported["pairs"]} == {"small", "big"}
    text = run("routers", "eval", "support", str(write_examples(tmp_path, target=True))).stdout
    assert "went where they belong" in text
    assert "BELONGS TO" in text


def test_eval_draws_for_each_row_among_targets_with_weights(server: FakeServer, run: Run, tmp_path: Path) -> None:
    targets = [{"name": "small", "weight": 1}, {"name": "big", "weight": 1}]
    server.on("GET", "/v1/routers/support", router(definition={"id": "support", "targets": targets}))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": "the same", "intent": None}) + "\n" for _ in range(200)))
    reported = [json.loads(run("routers", "eval", "support", str(file), "--json").stdout) for _ in range(2)]
    assert reported[0] == reported[1], "the draws are the same at each run"
    assert reported[0]["abstained_outside"] == 1.0
    counts = {pair["target"]: pair["count"] for pair in reported[0]["pairs"]}
    assert sum(counts.values()) == 200
    assert min(counts["small"], counts["big"]) > 60


def test_report_prints_acceptance_and_other_thresholds(server: FakeServer, run: Run) -> None:
    outcome = {"target": "small", "reason": "intent", "requests": 4, "accepted": 0.75, "cost_micro": 1500.0}
    unknown = {**outcome, "target": "big", "accepted": None}
    point = {"threshold": 0.5, "answered": 0.9, "accepted": None, "cost_micro": 2000.0}
    reported = {"router": "support", "days": 1.0, "requests": 8, "outcomes": [outcome, unknown], "replay": [point]}
    server.on("GET", "/v1/routers/support/report", reported)
    displayed = run("routers", "report", "support", "--days", "1").stdout
    assert server.received[-1].query == "days=1.0"
    assert "75.0%" in displayed
    assert "0.001500" in displayed
    assert "another threshold" in displayed
    assert json.loads(run("routers", "report", "support", "--json").stdout) == reported


def test_routers_are_explained_printed_aliased_and_rolled_back(server: FakeServer, run: Run) -> None:
    route = {
        "router": "support@v1", "target": "small", "reason": "intent:weather", "score": 0.9,
        "scores": {"weather": 0.9}, "alternatives": [], "fallbacks": ["big"], "saw": {"features": "letters"},
    }  # fmt: skip
    server.on("POST", "/v1/route", route)
    assert "weather 0.900" in run("routers", "explain", "support", "rain").stdout
    server.on("GET", "/v1/routers/support", router())
    assert "@prod" in run("routers", "show", "support").stdout
    server.on("PUT", "/v1/routers/support/aliases/next", router())
    assert run("routers", "alias", "support", "next").exit_code == 0
    assert server.received[-1].json == {"version": "v1"}
    server.on("POST", "/v1/routers/support/rollback", router())
    assert run("routers", "rollback", "support", "v1").exit_code == 0
    server.on("GET", "/v1/routers", {"object": "list", "data": [router()]})
    assert "support" in run("routers", "list").stdout


# --- providers -------------------------------------------------------------------------------------------------------
BREAKER = {"id": "there/big", "state": "open", "seconds": 4.2, "failures_in_a_row": 5}
PROVIDER = {"id": "there", "object": "provider", "protocol": "openai", "base_url": "https://example.com/v1",
            "key_is_set": False, "running": 2, "connections": 8, "models": [BREAKER]}  # fmt: skip


def test_providers_are_printed_with_breakers_and_keys(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/providers", {"object": "list", "data": [PROVIDER]})
    displayed = run("providers", "list").stdout
    for word in ("there/big", "open (4 s)", "NOT SET"):
        assert word in displayed
    assert json.loads(run("providers", "list", "--json").stdout)["data"] == [PROVIDER]


@pytest.mark.parametrize(
    ("reported", "code", "word"),
    [
        ({"ok": True, "message": "It has 2 models.", "missing": []}, 0, "It has 2 models."),
        ({"ok": False, "message": "It has 2 models.", "missing": ["big"]}, 1, "It lacks: big."),
        ({"ok": False, "message": "No connection.", "missing": []}, 1, "does not answer"),
    ],
    ids=["well", "one is missing", "nobody there"],
)
def test_a_test_of_a_provider_prints_its_result(
    server: FakeServer, run: Run, reported: dict[str, Any], code: int, word: str
) -> None:
    server.on("POST", "/v1/providers/there/test", {"id": "there", "seconds": 0.1, **reported})
    result = run("providers", "test", "there")
    assert result.exit_code == code
    assert word in result.output
    result = run("providers", "test", "there", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["message"] == reported["message"], "one JSON document"


def test_the_list_of_models_has_providers_models_and_routers(server: FakeServer, run: Run) -> None:
    other_place = {"id": "there/big", "owned_by": "there", "task": "chat", "aliases": ["b"], "description": ""}
    card = {"id": "auto", "owned_by": "roundhouse", "kind": "router", "task": "chat", "description": "by intent"}
    server.on("GET", "/v1/models", {"object": "list", "data": [other_place, card]})
    displayed = run("models", "list").stdout
    assert "elsewhere, at there" in displayed
    assert "router" in displayed
    server.on("GET", "/v1/models/auto", card)
    assert "by intent" in run("models", "show", "auto").stdout
