"""The web console: pages, their state, and one stream of events for all viewers.

sessions.py    who has signed in
history.py     the last requests, and sums of the last minute
texts.py       prompts and answers of teams that store them
decisions.py   the last decisions, in words
now.py         what the page Now shows: values only
ring.py        which adapter stands at which stall of the ring
kept.py        these together, as the server holds them
live.py        one sampler and one stream, while somebody looks
host.py        what the server around it hands in
pages/         one folder per page: `page.py`, its template, and its script if it has one
rendering.py   templates, and the headers that every page has
web.py         the paths
vendored.py    what of others is shipped in `static/vendor`, with versions and sums

It imports nothing of the server: `runtime.http.pages.console` gives it what it shows.
"""
