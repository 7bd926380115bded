"""Stored responses of OpenAI's Responses API: fetched by id, continued, or computed in the background.

    (begin) ──> running ──> ended ──(expired, deleted, no room, team archived, storing switched off)──> deleted
                   └──(its server stopped or died; found at the next start)──> ended, status `failed`

Only background responses are stored while they run; the others are stored when complete. A row contains all of the
model's input, so no row depends on another. None of it is ever logged.

table.py   the database table
rows.py    one stored response
store.py   which teams store responses and for how long; background work
"""
