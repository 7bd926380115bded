"""Callbacks: events sent to a team's servers when a batch ends, signed as Standard Webhooks.

A delivery is a row of the outbox, written in the transaction that ends the batch:

| state     | entered when                                            | next states                     |
|-----------|---------------------------------------------------------|---------------------------------|
| pending   | its batch ended; an attempt failed; it is sent again    | sending                         |
| sending   | a server claimed it under its epoch                     | delivered, pending, dead        |
| delivered | its receiver answered with 2xx                          | pending, if it is sent again    |
| dead      | 24 hours of attempts failed; the receiver answered 410; | pending, if it is sent again    |
|           | its webhook was deleted                                 |                                 |

    sending ──(the epoch is closed: its server stopped or died)──> pending

So each delivery arrives at least once or becomes dead. All attempts have the same `webhook-id`, but not the same time.

records.py    deliveries, webhooks and events
policy.py     when a delivery is retried; pure
outbox.py     the table of deliveries
webhooks.py   the table of webhooks and their secrets
addresses.py  which URLs may be called
sender.py     one attempt: signed and sent
deliverer.py  the task that sends what is in the outbox
service.py    callbacks and webhooks for HTTP
"""
