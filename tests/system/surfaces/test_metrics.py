"""Observing a real server: a real Prometheus with its metrics, dashboards, exemplars, commands, reports."""

import json
import math
import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import Result
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from typer.testing import CliRunner

from runtime.cli.main import app
from tests import prometheus
from tests.eventually import eventually
from tests.system.serving import ROOT, STARTER, Server
from tests.system.surfaces.test_routing import DATE, chat_body

pytestmark = pytest.mark.real
DEPLOY = ROOT / "deploy"
PUBLIC: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "deploy" / "dashboards.yaml").read_text())
OWN = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
APART = 300.0
"""Pretended seconds between the two scrapes."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a ledger and a price, as costs and feedback are reported, too."""
    folder = tmp_path_factory.mktemp("metrics") / "a"
    chat = yaml.safe_load((STARTER / "starter-chat.yaml").read_text())
    chat["price"] = {"input": 1.0, "output": 2.0}
    file = folder.parent / "chat.yaml"
    file.write_text(yaml.safe_dump(chat))
    made = command("teams", "create", "search", "--data-dir", str(folder / "data"))
    assert made.exit_code == 0, made.output
    others = [STARTER / f"{name}.yaml" for name in ("starter-embed", "auto")]
    server = Server(folder / "data", [file, *others], "--slots", "3", "--machine-price", "2.5")
    yield server.wait_ready()
    server.close()


def command(*words: str, key: str = "") -> Result:
    return CliRunner().invoke(app, words, env={"ROUNDHOUSE_API_KEY": key or None})


def use(server: Server, adapter: str) -> None:
    """Do everything that is counted once. The adapter is placed for it."""
    chat(server, adapter)
    http = server.http
    assert http.post("/v1/embeddings", json={"model": "starter-embed", "input": ["one", "two"]}).status_code == 200
    assert http.post("/v1/models/starter-embed/unload").status_code == 200
    assert http.post("/v1/embeddings", json={"model": "nobody", "input": "one"}).status_code == 404


def chat(server: Server, adapter: str) -> str:
    """Request answers of the base and of adapters, and send feedback for one. Returns the id of a request."""
    http = server.http
    message = [{"role": "user", "content": "the lucky bird is in the house by the river and sings of it all day long"}]
    models = ("starter-chat", "starter-chat:uppercase", f"starter-chat:{adapter}")
    for model, class_ in zip(models, ("default", "default", "flex"), strict=True):
        body = {"model": model, "messages": message, "max_tokens": 8, "ignore_eos": True, "service_tier": class_}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
    streamed = {"model": "starter-chat", "messages": message, "max_tokens": 8, "ignore_eos": True, "stream": True}
    assert http.post("/v1/chat/completions", json=streamed).text.endswith("data: [DONE]\n\n")
    judged = {"request_id": answer.headers["x-request-id"], "accepted": True}
    assert http.post("/v1/feedback", json=judged).status_code == 200
    return str(answer.headers["x-request-id"])


@pytest.fixture(scope="module")
def scraped(seen: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    if not prometheus.is_there():
        pytest.skip(prometheus.MISSING)
    now, scrapes = time.time(), {}
    for at, adapter in ((now - APART, "reverse-words"), (now, "title-case")):
        use(seen, adapter)
        scrapes[at] = seen.http.get("/metrics").text
    with prometheus.holding(scrapes, tmp_path_factory.mktemp("prometheus")) as found:
        yield found


def without_selectors(query: str) -> str:
    """Return a query as Grafana makes it for all models, with recorded series replaced by their rules."""
    [group] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        if "record" in rule:
            query = query.replace(rule["record"], f"({rule['expr']})")
    query = re.sub(r"\$__(rate_interval|range)", "10m", query)
    return re.sub(r"\$\w+", ".*", query)


def queries(board: dict[str, Any]) -> list[str]:
    """Return the queries of a public dashboard."""
    found, by = list(board["more"]), ", ".join(board["by"])
    for name, quantiles in board["histograms"].items():
        over = "[$__rate_interval]"
        found += [f"rate({name}_sum{over}) / rate({name}_count{over})"]
        found += [f"histogram_quantile({q}, sum by ({by}) (rate({name}_bucket{over})))" for q in quantiles]
    return found


@pytest.mark.parametrize("board", PUBLIC, ids=lambda board: board["name"])
def test_each_query_of_public_dashboards_gets_figures(scraped: prometheus.Prometheus, board: dict[str, Any]) -> None:
    none = [query for query in queries(board) if not figures(scraped, query)]
    assert none == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_each_query_of_our_dashboards_gets_figures(scraped: prometheus.Prometheus, path: Path) -> None:
    queries = [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]
    assert [query for query in queries if not figures(scraped, query)] == []


def figures(held: prometheus.Prometheus, query: str) -> list[float]:
    return [value for value in held.values(without_selectors(query)) if not math.isnan(value)]


def test_an_unreported_series_gets_none(scraped: prometheus.Prometheus) -> None:
    """Otherwise the two tests above would prove nothing."""
    assert figures(scraped, 'vllm:num_requests_running{model_name="nobody"}') == []


def test_a_bucket_of_first_tokens_names_a_request_that_can_be_looked_up(seen: Server) -> None:
    id_ = chat(seen, "rot13")
    text = seen.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}).text
    first = next(f for f in text_string_to_metric_families(text) if f.name == "roundhouse_time_to_first_token_seconds")
    named = {sample.exemplar.labels["request_id"] for sample in first.samples if sample.exemplar}
    assert id_ in named
    for one in named:
        reported = command("logs", one, "--url", seen.url)
        assert reported.exit_code == 0, reported.output
        assert all(word in reported.stdout for word in (one, "queue", "prefill", "answered by"))


def test_top_shows_the_page_now_in_a_terminal(seen: Server) -> None:
    reported = command("top", "--once", "--url", seen.url)
    assert reported.exit_code == 0, reported.output
    for words in ("memory", "starter-chat", "of 24 places", "why requests waited", "last decisions"):
        assert words in reported.stdout, words


def test_a_report_joins_decisions_with_feedback(seen: Server) -> None:
    """This must be the last test, as the server requires keys after its first one."""
    assert seen.http.post("/v1/models/starter-embed/unload").status_code == 200  # routers only compare letters
    seen.command("teams", "create", "support")
    key = seen.command("keys", "create", "--team", "support", "--scopes", "infer,models")["value"]
    headers = {"Authorization": f"Bearer {key}"}
    eventually(lambda: seen.http.get("/v1/routers").status_code == 401)
    for place, text in enumerate((DATE, "7 May 2021", "qwpo zmxn vrrt")):
        request = {**headers, "x-request-id": f"told-{place}", "x-conversation-id": f"c-{place}"}
        answer = seen.http.post("/v1/chat/completions", json=chat_body(text), headers=request)
        assert answer.status_code == 200, answer.text
        judged = {"request_id": answer.headers["x-request-id"], "accepted": place != 1}
        assert seen.http.post("/v1/feedback", json=judged, headers=headers).status_code == 200
    words = ("routers", "report", "auto", "--url", seen.url)
    done = [command(*words, *more, key=key).stdout for more in ((), ("--json",))]
    reported = json.loads(done[1])
    assert (reported["router"], reported["requests"]) == ("auto", 3)
    outcomes = {(one["target"], one["reason"].partition(":")[0]): one for one in reported["outcomes"]}
    dates, others = outcomes["starter-chat:iso-date", "intent"], outcomes["starter-chat", "abstained"]
    assert (dates["requests"], dates["accepted"]) == (2, 0.5)
    assert (others["requests"], others["accepted"]) == (1, 1.0)
    assert reported["replay"], "what other thresholds would have given"
    assert "starter-chat:iso-date" in done[0]
    assert "50.0%" in done[0]
    _embeddings_of_routers_count(seen, headers)


def _embeddings_of_routers_count(seen: Server, headers: dict[str, str]) -> None:
    """Part of that test, as it needs a key. An explanation is a request, and a routed one has more tokens."""

    def row(answer: httpx.Response) -> Any:
        assert answer.status_code == 200, answer.text
        where = f"/v1/requests/{answer.headers['x-request-id']}"
        (found,) = seen.http.get(where, headers=headers).json()["ledger"]
        return found

    def post(path: str, text: str, name: str) -> httpx.Response:
        return seen.http.post(path, json=chat_body(text), headers={**headers, "x-request-id": name})

    letters = [row(post(path, DATE, f"letters-{path[-1]}")) for path in ("/v1/route", "/v1/chat/completions")]
    admin = seen.command("keys", "create", "--team", "support", "--scopes", "infer,models,admin")["value"]
    loading = {"Authorization": f"Bearer {admin}"}
    eventually(lambda: seen.http.get("/v1/models", headers=loading).status_code == 200)
    assert seen.http.post("/v1/models/starter-embed/load", headers=loading).status_code == 200
    eventually(lambda: row(post("/v1/route", DATE, "looked"))["prompt_tokens"] > 0)  # a vector may be late
    numbers = count()

    def looked() -> tuple[Any, Any] | None:
        """Return the rows of an explanation and a request, or None if the vector was too late for one of them."""
        number = next(numbers)
        explained = row(post("/v1/route", DATE, f"explained-{number}"))
        routed = row(post("/v1/chat/completions", DATE, f"routed-{number}"))
        is_whole = explained["prompt_tokens"] and routed["prompt_tokens"] > letters[1]["prompt_tokens"]
        return (explained, routed) if is_whole else None

    rows = eventually(looked)
    assert rows is not None
    explained, routed = rows
    assert (letters[0]["model"], letters[0]["prompt_tokens"]) == ("auto", 0)
    assert (explained["endpoint"], explained["model"]) == ("/v1/route", "starter-embed")
    assert routed["prompt_tokens"] - letters[1]["prompt_tokens"] == explained["prompt_tokens"] > 0
    seen.command("limits", "set", "requests_per_minute", "2", "--team", "support")
    eventually(lambda: post("/v1/route", DATE, "limited").status_code == 429)
