"""Stored responses of OpenAI's Responses API: fetched by id, continued from, or computed in the background.

    (begin) ──> running ──> ended ──(expired, deleted, no room, team archived, storing switched off)──> gone
                   └──(its server stopped or died; found at the next start)──> ended, status `failed`

Only background responses are stored while they run; the others are stored once they are complete. A row holds
everything that the model was given, so no row depends on another. Nothing of it is ever logged.

table.py   one stored response, and the database table
store.py   which teams store, and for how long; background work
"""
