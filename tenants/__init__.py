"""Teams, their keys, limits and costs, and a ledger of requests.

keys/       the format, storage and lookup of keys; the caller of a request
sign_in/    people who sign in through OpenID Connect instead of using a key
ledger/     one row per request, and hourly sums
limits/     rates and budgets of teams and keys
costs/      prices, accelerator time, reports
storage/    the tables, in SQLite or PostgreSQL

Not here: which path needs which scope (`runtime.http.guard`), and the command line (`runtime.cli.commands`).
"""
