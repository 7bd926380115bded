"""Names that all servers of a fleet share: adapters and routers, aliases of models, and added recipes.

They are in one schema of PostgreSQL.

revision.py   the number of the last change, which every change sets
opening.py    the tables, which are those of `registry.state.tables`, and the row of that number
tables.py     what a fleet's schema has beside the tables of `registry.state.tables`
recipes.py    recipes of models that were added at run time
watch.py      waits for changes of other servers
importing.py  takes a server's own names along

| another server            | this server                                                     |
|---------------------------|-----------------------------------------------------------------|
| changes a name            | reads all names anew, in one transaction                        |
| changes the same name now | waits for it (both have the schema's lock), then changes its result |
| gave a name away          | Conflict (`name_in_use`): the name keeps its first meaning      |

A server reads names from memory, as one set that is replaced whole: a request sees a move of an alias or does not, and
never half of it. Measured loads and sleeps, and pins of models, stay each server's own.
"""
