"""The parts of the benchmark `routing`.

data.py           the data of 150 intents
intents.py        the quality of a fitted router
decisions.py      the time of a decision, compared with aurelio's semantic-router
provider_cost.py  what the gateway adds to a provider, compared with the LiteLLM proxy; the cost of a breaker
run.py            runs all of these

The peers have their own environment: `scripts/install-clients routing`.
"""
