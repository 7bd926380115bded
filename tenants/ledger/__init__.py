"""The ledger: one row per request that named a model, whatever its outcome.

    (begin) ──> open ──(its end: done, refused, cancelled, deadline, engine_died, failed)──> settled
                  │                                                                             ^
                  ├──(the server was killed; found at its next start)──> interrupted            │
                  └──(another server of the fleet found it silent)─────> interrupted ──(its end comes after all)

An attempt at a line of a batch is such a row as well. The line's result rides along: it is written in the transaction
that ends the row, and only if the row was open (`rows.Rider`), so a line ends exactly once and is paid for once. An
attempt that ends without an answer, or that a kill interrupts, is repeated and counts nothing.

A row is committed before an engine sees the request, and written a last time at its end: with the tokens that were
really made, also where the client left or the engine died. No state changes again, with one exception: a server of a
fleet that could not reach the database for so long that it was taken for dead brings its ends from its journal. In the
transaction that ends a row its hour's sums grow (`hours`), so that a report reads sums, never rows.

rows.py     a request as it is recorded
table.py    the two tables, and whether they agree
writer.py   one thread that writes in batches
journal.py  the file that takes rows which the database does not take now
report.py   sums by team, key, model and time

The ledger begins with the server. Until the first key or limit, requests do not wait for their rows, and run without
them while the database does not answer: they are no one's bill.
"""
