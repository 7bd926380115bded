"""Members of a fleet: a row with a lease for each server, in a schema of the fleet's PostgreSQL.

tables.py      the tables; migrations/ creates them
members.py     join, renew, list, leave, drain; ends the rows of dead servers
desired.py     the desired replicas, and the server that plans them
at_once.py     shares of requests at once
sessions.py    signed-in browsers

| the row of a name                    | join                             | renew                             |
|--------------------------------------|----------------------------------|-----------------------------------|
| is missing, or its lease has expired | taken, with the next boot number | -                                 |
| belongs to this data directory       | taken: its old server has ended  | extends its lease                 |
| belongs to another data directory    | refused while its lease lasts    | -                                 |
| has a higher boot number             | -                                | lost: another server has the name |

Leases use only the database's clock. A server whose lease expired DEAD_SECONDS ago is dead: the server that holds the
lock ends its open rows in the ledger (`tenants.ledger`). After FORGOTTEN_DAYS its row is deleted.
"""
