"""Engines: one file per task, each importing its heavy library only when it loads a model."""
