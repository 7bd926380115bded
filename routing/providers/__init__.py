"""Models on other servers, over HTTP: requests, answers and failures.

    call ── plan ──> path and body ── connection ──> bytes ── pass_through, translation ──> the engine's events

connection.py  all I/O: connections, time-outs, bounds
plan.py        which path answers a request, and whether it must be translated; tasks.py for tasks other than chat
pass_through.py  an answer in the client's own dialect: its bytes, with the client's model name and call numbers
translation/   OpenAI's chat from and to Anthropic's messages; works on bytes and values only
faults.py      classifies failures; breaker.py decides when a provider gets no requests
upstream.py    one provider with all of that, and whether a failure is retried; call.py one call to it
usage_bounds.py  the most usage that a request can have
"""
