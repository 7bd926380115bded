"""Models on other servers, over HTTP: requests, answers and failures.

    call ── plan ──> path and body ── connection ──> bytes ── pass_through, translation ──> the engine's events

connection.py  the one place with I/O: connections, time-outs, bounds
address.py     where connections may go; session.py the client that goes nowhere else
plan.py        which path answers a call, and whether its dialect has to be translated; tasks.py all but chat
pass_through.py  an answer in the client's own dialect: its bytes, with the client's model name and call numbers
translation/   OpenAI's chat from and to Anthropic's messages; bytes and values only
faults.py      what a failure is; breaker.py when a provider gets no requests
upstream.py    one provider with all of that, and whether a failure is tried again; call.py one call to it
"""
