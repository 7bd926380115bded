"""Callbacks: what is sent to a team's servers when a batch ends, signed as Standard Webhooks.

A delivery is a row of the outbox, written in the transaction that ends the batch:

| state     | entered when                                            | leaves to                       |
|-----------|---------------------------------------------------------|---------------------------------|
| pending   | its batch ended; an attempt failed; it is sent again    | sending                         |
| sending   | a server claimed it under its epoch                     | delivered, pending, dead        |
| delivered | its receiver answered with 2xx                          | pending, when it is sent again  |
| dead      | 24 hours of attempts failed; the receiver answered 410; | pending, when it is sent again  |
|           | its webhook was deleted                                 |                                 |

    sending ──(the epoch is closed: its server stopped or died)──> pending

So each delivery arrives at least once, or is dead. Its `webhook-id` is the same in all attempts, the time is not.

records.py    deliveries, webhooks and events
policy.py     when a delivery is tried again; pure
outbox.py     the table of deliveries
webhooks.py   the table of webhooks and their secrets
addresses.py  which URLs may be called
sender.py     one attempt: signed and sent
deliverer.py  the task that works off the outbox
service.py    callbacks and webhooks for HTTP
"""
