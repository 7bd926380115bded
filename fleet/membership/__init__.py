"""Members of a fleet: a row with a lease for each server, in a schema of the fleet's PostgreSQL.

tables.py      the row, and how the table came to be (migrations/)
members.py     join, renew, look, leave, drain; whose rows are to be ended
sessions.py    browsers that are signed in

| the row of a name                  | join                                  | renew                             |
|------------------------------------|---------------------------------------|-----------------------------------|
| is not there, or its lease is over | taken, with the next boot number      | -                                 |
| is this data directory's           | taken: the server before it has ended | its lease lasts LEASE_SECONDS     |
| is another data directory's        | refused while its lease lasts         | -                                 |
| has a higher boot number           | -                                     | lost: another server has the name |

Leases run by the database's clock alone. A server whose lease is over for DEAD_SECONDS is dead: whichever server holds
the lock ends its open rows in the ledger (`tenants.ledger`).
"""
