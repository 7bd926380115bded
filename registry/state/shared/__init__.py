"""Names that all servers of a fleet share: adapters, routers, model aliases and added recipes.

They are stored in one PostgreSQL schema.

revision.py   the number of the last change, which every change increments
opening.py    opens the tables: those of `registry.state.tables` and of tables.py
tables.py     the tables that only a fleet's schema has
migrations/   the steps that create them
recipes.py    recipes of models that were added at run time
watch.py      waits for changes by other servers
importing.py  imports a server's own names

| another server                | this server                                                |
|-------------------------------|------------------------------------------------------------|
| changes a name                | rereads the changed names in one transaction               |
| changes the same name now     | waits for the schema's lock, then changes the result       |
| gave the name another meaning | Conflict (`name_in_use`): the name keeps its first meaning |

A server reads names from memory, as one set that is replaced as a whole, so a request never sees half of a change.
Measured loads and sleeps and model pins are not shared.
"""
