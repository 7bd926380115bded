"""Engines, tasks and messages. Heavy libraries are imported only for a load."""
