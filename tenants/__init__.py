"""Who may use the server, as whom, and what they used: teams, their keys, and a ledger of requests.

keys/       what a key looks like, how it is kept and looked up; who a request's caller is
ledger/     a row per request, and sums of them
limits/     what teams and keys may use: rates, budgets
costs/      prices, the machine's own time, reports
storage/    the tables, on SQLite or PostgreSQL

Not here: which path needs which scope (`runtime.http.guard`), and the command line (`runtime.cli.commands`).
"""
