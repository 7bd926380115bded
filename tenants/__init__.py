"""Teams, their keys, limits and costs, and a ledger of requests.

keys/       the format, storage and look-up of keys; the caller of a request
sign_in/    people without a key, by OpenID Connect
ledger/     a row per request, and sums
limits/     rates and budgets of teams and keys
costs/      prices, the machine's own time, reports
storage/    the tables, on SQLite or PostgreSQL

Not here: which path needs which scope (`runtime.http.guard`), and the command line (`runtime.cli.commands`).
"""
