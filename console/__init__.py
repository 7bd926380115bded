"""The web console: pages, their state, and one stream of events for all viewers.

history.py     the last requests and decisions, and sums of the last minute
texts.py       prompts and answers of teams that store them
live.py        values of the page Now: one sampler and one stream, while there are viewers
sessions.py    browsers that are signed in, at this server or at one of its fleet
state.py       these together, as the server holds them
host.py        the interface to the server around it
pages/         one package per page: what it needs, its template, and its script if it has one
rendering.py   templates, static files, headers; answers of JSON, HTML and redirects
signing_in.py  where sessions begin and end: with a key, or at the company's provider
web.py         the paths

It imports nothing of the server: `runtime.http.pages` provides its data.
"""
