"""What was used: one row per request that named a model, whatever became of it.

    (begin) ──> open ──(its end: done, refused, cancelled, deadline, engine_died, failed)──> settled
                  └──(the server was killed; told at its next start)──> interrupted

A row is committed before an engine sees the request, and written a last time at its end: with the tokens that were
really made, also where the client left or the engine died. Neither state changes again. In the transaction that ends a
row its hour's sums grow (`hours`), so that a report reads sums, never rows.

rows.py     what is told of a request
table.py    the two tables, and whether they agree
writer.py   one thread that writes what has come meanwhile in one transaction
report.py   sums by team, key, model and time

There is a ledger as soon as there is a team or a key: a server that nobody shares has nobody to account to.
"""
