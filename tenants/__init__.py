"""Who may use the server, and as whom: teams and their keys.

keys/       what a key looks like, how it is kept and looked up; who a request's caller is
storage/    the tables, on SQLite or PostgreSQL

Not here: which path needs which scope (`runtime.http.guard`), and the command line (`runtime.cli.commands`).
"""
