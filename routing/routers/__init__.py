"""Routers as content.

content.py   a definition with its models: as files, by digest, and ready to decide
replay.py    outcomes of decisions, and of other thresholds

Its YAML is `registry.recipes.router`, its versions and aliases are `registry.state`'s.
"""
