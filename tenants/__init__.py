"""Teams, their keys, limits and costs, and a ledger of requests.

keys/            the format, storage and lookup of keys
caller.py        team, key, permissions and defaults of a request's caller
watch.py         the keys of a running server, which follow changes by other processes
declared.py      teams declared in a file
key_settings.py  settings of teams and keys
sign_in/         people who sign in through OpenID Connect instead of using a key
ledger/          one row per request, and hourly sums
limits/          rates and budgets of teams and keys
costs/           prices, accelerator time, reports
responses/       stored responses of OpenAI's Responses API
storage/         the tables, in SQLite or PostgreSQL

Not here: which path needs which scope (`runtime.http.guard`), and the command line (`runtime.cli.commands`).
"""
