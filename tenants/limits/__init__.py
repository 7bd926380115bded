"""Limits of teams and keys: requests, tokens and audio a minute, requests at once, money a day or a month.

    admit ──(each limit has room)──> admitted: the most that it can use is reserved ──(its end, whatever)──> settled
      └────(one has none)──────────> refused: LimitExceeded names all that have none; nothing is reserved

records.py    a limit as it is stored, and when a budget's day or month begins in the team's time zone
meters.py     how much of one is left: a rate by GCRA, a count, a budget; pure, whole numbers, the clock is given
stored.py     what a team's adapters take of its limits of storage, and its unfinished batches of their tokens
limiter.py    one request against all of its limits
refusals.py   what a request is answered that they do not let in
table.py      limits in the database
history.py    usage of the last minute and present budgets in the ledger: where meters begin
simulate.py   a limit against the ledger's requests of some past time

A rate holds one minute's amount and refills evenly: in t seconds never more than amount × (1 + t / 60 s) gets in.
Meters are in memory, of one server; after a kill they begin with the ledger's figures, and what was under way then
counts as the most that it could have used. Servers of a fleet share limits: their meters come from a `MeterSource`, and
`prepare` takes a part of a limit before `admit` decides by what is here (`fleet.shared_limits`).
"""
