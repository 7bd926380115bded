"""HTTP: one folder per family of dialects; errors in each vendor's shape.

A family has its bodies, its answers and its routes (`route`). `dialect` defines what families have in common, and
`serving` handles every inference request. `admin` is our own API, whose handlers only parse and render.
Names, queues and loads belong to `runtime.gateway`. Slots are never imported.
"""
