"""This machine's models.

backend.py   which weights a name means, and a turn in the queue of their model
lease.py     calls to a slot during a turn, and what a recipe adds to a chat body
adapters.py  what the queues ask and report about adapters
observer.py  loads, sleeps and evictions: metrics, log lines, stored measurements
rooms.py     the room that models have for batch lines
"""
