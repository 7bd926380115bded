"""Benchmark `routing`, in parts (`run.py` puts them together).

data.py       the 150 intents, where they are
intents.py    how good a fitted router is
decisions.py  how long a decision takes
elsewhere.py  what a provider costs more through the gateway, and a breaker's step

Beside aurelio's semantic-router and the LiteLLM proxy, from an environment of their own: `scripts/install-clients
routing`.
"""
