"""What everything outside uses: one object, made in `opening`, that holds all the rest.

Here: who asks (`context`), what answers (`backend`, `local`), what is told at the end (`record`, `sinks`), and what may
be done with models and adapters (`models`, `adapters`), once for HTTP and for the start.
Not here: HTTP and its dialects (`runtime.http`), order in a queue (`scheduling`), who is in memory (`residency`).
"""
