"""The web console: pages, their state, and one stream of events for all viewers.

history.py     the latest requests and decisions, and sums of the last minute
texts.py       prompts and answers of teams that store them
live.py        values of the page Now: one sampler and one stream, while anyone is viewing
sessions.py    signed-in browsers, of this server or its fleet
state.py       all of these, as the server holds them
host.py        the interface to the server around it
pages/         one package per page: its data, its template, and a script if it needs one
rendering.py   templates, static files, headers; JSON, HTML and redirect responses
signing_in.py  where sessions start and end: with a key, or at the company's provider
web.py         the paths

Imports nothing from the server: `runtime.http.pages` provides its data.
"""
