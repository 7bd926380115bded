"""The web console: pages, their state, and one stream of events for all viewers.

sessions.py    signed-in browsers
history.py     the last requests, and sums of the last minute
texts.py       prompts and answers of teams that store them
decisions.py   the last decisions, in words
live_view.py   values of the page Now, and the stalls of its rings
state.py       these together, as the server holds them
live.py        one sampler and one stream, while there are viewers
host.py        the interface to the server around it
pages/         one package per page: what it needs, its template, and its script if it has one
rendering.py   templates, and the headers that every page has
web.py         the paths
files.py       static files, and the versions and digests of `static/vendor`

It imports nothing of the server: `runtime.http.pages.console` provides its data.
"""
