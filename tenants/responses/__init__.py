"""Stored answers of OpenAI's Responses: asked for again, gone on from, or made while nobody waits.

    (begin) ──> running ──> ended ──(life over, deleted, no room, team archived or switched off)──> gone
                   └──(its server stopped or died; found at the next start)──> ended, status `failed`

Only background responses are stored while they run; others are stored once, whole. A row holds all that the model was
given, so none needs another one. Nothing of it stands in a log.

rows.py    a response as it is stored
table.py   the table
store.py   who stores for how long; background work
"""
