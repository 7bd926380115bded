"""Routers as content.

content.py   a definition with its models: as files, by digest, and ready to decide
replay.py    outcomes of decisions, also with other thresholds

The YAML format is in `registry.recipes.router`, versions and aliases are in `registry.state`.
"""
