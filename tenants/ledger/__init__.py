"""The ledger: one row per request that named a model, whatever its outcome.

    (begin) ──> open ──(it ends: done, refused, cancelled, deadline, engine_died, failed)──> settled
                  │                                                                             ^
                  ├──(the server was killed; found at its next start)──> interrupted            │
                  └──(another server of the fleet found it silent)─────> interrupted ──(its end arrives late)

An attempt at a batch line has a row, too. The line's result is written in the transaction that settles the row, and
only if the row was open (`rows.Rider`), so a line ends exactly once and is paid for once. An attempt that ends without
an answer, or that a kill interrupts, is repeated and counts nothing.

A row is committed before an engine sees the request, and written once more at its end with the tokens actually
generated, even if the client left or the engine died. States are final, with one exception: a fleet's server that was
taken for dead while it could not reach the database later brings the ends from its journal. The transaction that
settles a row also updates the sums of its hour (`hours`), so that reports read sums instead of rows.

rows.py          a request as it is recorded
table.py         the two tables, and a check that they agree
writer.py        one thread that writes in batches
journal.py       the file for rows that the database does not accept now
report.py        sums by team, key, model and time
ledger.py        the ledger of a running server, once it has a database
lookup.py        recorded requests, and what a router chose
view.py          usage that a caller may see
organization.py  usage as OpenAI's administration API has it
pruning.py       deletes old rows

The ledger starts with the server. Until the first key or limit exists, requests do not wait for their rows and run
without them if the database does not answer, because nobody is billed for them.
"""
