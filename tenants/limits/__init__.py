"""Limits of teams and keys: requests, tokens and audio per minute, requests at once, money per day or month.

    admit ──(every limit has room)──> admitted: the most it can use is reserved ──(it ends, in any way)──> settled
      └────(some limit has none)────> refused: LimitExceeded names all of those; nothing is reserved

records.py   a limit as it is stored, and when a budget's day or month begins in the team's time zone
meters.py    what is left of a limit: a GCRA rate, a count or a budget. Pure integer arithmetic; the clock is passed in
stored.py    limits on a team's stored adapters and on the tokens of its unfinished batches
limiter.py   checks a request against all of its limits
refusals.py  the errors for requests over a limit
table.py     limits in the database
loader.py    reloads a running server's limits after a change
history.py   usage of the last minute and of current budgets, from the ledger: the initial values of meters
simulate.py  replays past requests of the ledger against a limit

A rate holds one minute's amount and refills evenly: in t seconds at most amount × (1 + t / 60 s) is admitted.
Meters live in the memory of one server. After a kill they start from the ledger's figures, and interrupted requests
count as the most they could have used. Servers of a fleet share limits: their meters come from a `MeterSource`, and
`prepare` fetches a part of a limit before `admit` decides with what this server holds (`fleet.shared_limits`).
"""
