"""Generate requests: models, adapters, lengths and arrivals."""

import math
import random
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from fleet.choose import prefix_key
from fleet.simulation.scenario import Scenario

FLOODER = "flooder"
TEAMS = 8
PREFIXES = 20
"""Number of shared prompt beginnings for each model."""
PREFIX_PART = 0.6
"""Shared part of such a prompt."""
SIZES = (60, 16, 40, 24, 34)
"""Sizes of models in GiB, used in turn."""
BURST_EVERY, BURST_SECONDS, BURST_RATE = 20.0, 2.0, 2.0


class SimRequest:
    """A request and its outcome."""

    __slots__ = (
        "answer", "arrived", "attempts", "began", "digest", "draw", "first", "is_cached", "is_hit", "model", "node",
        "outcome", "prefix", "prompt", "shared", "team", "tries",
    )  # fmt: skip

    def __init__(self, arrived: float, model: str, team: str, prompt: float, answer: int, draw: int) -> None:
        self.arrived, self.model, self.team = arrived, model, team
        self.prompt, self.answer, self.draw = prompt, answer, draw
        self.digest: str | None = None
        self.prefix: int | None = None
        self.shared = 0.0
        """Tokens of the prompt that are shared with others."""
        self.tries: list[str] = []
        self.attempts = 0
        self.node = ""
        """The node to which it was sent last."""
        self.began = self.first = -1.0
        """Times of its start and of its first token."""
        self.is_hit = self.is_cached = False
        self.outcome = ""


class SimTraffic:
    """Seeded requests, in the order of their arrival."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = random.Random(scenario.seed)
        rng = random.Random(scenario.seed + 1)
        self.models = [f"model-{number}" for number in range(scenario.models)]
        self.gib = {model: SIZES[number % len(SIZES)] for number, model in enumerate(self.models)}
        weights = [1 / (rank + 1) ** scenario.model_skew for rank in range(scenario.models)]
        self.weights = {model: weight / sum(weights) for model, weight in zip(self.models, weights, strict=True)}
        self._model_sums = list(accumulate(self.weights.values()))
        digests = [f"sha256:{rng.getrandbits(256):064x}" for _ in range(scenario.adapters)]
        self._digests = {model: digests[number :: scenario.models] for number, model in enumerate(self.models)}
        longest = -(-scenario.adapters // scenario.models)
        self._adapter_sums = list(accumulate(1 / (rank + 1) ** scenario.adapter_skew for rank in range(longest)))
        self._prefix_sums = list(accumulate(1 / (rank + 1) for rank in range(PREFIXES)))

    @property
    def request_seconds(self) -> float:
        """Mean time of a request in an engine at the scenario's load."""
        one, times = self._scenario, self._scenario.times
        step = times.step + times.step_more * one.at_once * one.load
        return one.answer_tokens * step + one.prompt_tokens / times.prompt_rate

    @property
    def rate(self) -> float:
        """Requests per second, without the flooder's; together with its limit they make up the load."""
        one = self._scenario
        return one.load * one.nodes * one.devices * one.at_once / self.request_seconds / (1 + one.flood_limit)

    def arrivals(self) -> Iterator[SimRequest]:
        one, rng, now = self._scenario, self._rng, 0.0
        rate = self.rate * (1 + one.flood_limit + one.flood)
        flood = (one.flood_limit + one.flood) / (1 + one.flood_limit + one.flood)
        most = rate * (BURST_RATE if one.shape == "bursts" else 1.5 if one.shape == "day" else 1.0)
        while True:
            now += rng.expovariate(most)
            if now >= one.seconds:
                return
            if rng.random() * most < rate * self._factor(now):
                yield self._request(now, rng.random() < flood)

    def _factor(self, now: float) -> float:
        if self._scenario.shape == "bursts":
            return BURST_RATE if now % BURST_EVERY < BURST_SECONDS else 1.0
        if self._scenario.shape == "day":
            return 1 + 0.5 * math.sin(2 * math.pi * now / self._scenario.seconds)
        return 1.0

    def _request(self, now: float, is_flood: bool) -> SimRequest:
        one, rng = self._scenario, self._rng
        model = self.models[self._drawn(self._model_sums)]
        team = FLOODER if is_flood else f"team-{rng.randrange(TEAMS)}"
        prompt = rng.lognormvariate(math.log(one.prompt_tokens) - 0.32, 0.8)
        answer = 1 + min(20 * one.answer_tokens, int(rng.expovariate(1 / one.answer_tokens)))
        request = SimRequest(now, model, team, prompt, answer, rng.getrandbits(64))
        digests = self._digests[model]
        if digests and rng.random() < one.with_adapter:
            request.digest = digests[self._drawn(self._adapter_sums[: len(digests)])]
        if rng.random() < one.shared_prefix:
            number = self._drawn(self._prefix_sums)
            request.prefix = prefix_key("", request.digest, f"{model} {number}".encode())
            request.shared = PREFIX_PART * prompt
        else:  # fronts assume that any prompt's beginning may be cached
            request.prefix = prefix_key("", request.digest, b"%d" % request.draw)
        return request

    def _drawn(self, sums: list[float]) -> int:
        return bisect_left(sums, self._rng.random() * sums[-1])
