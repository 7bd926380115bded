"""HTTP: one folder per family of dialects; errors in each vendor's shape.

A family has its bodies, its answers and its routes (`route`); `dialect` says what they have in common, and `serving`
is the way of every request. `admin` is our own interface: handlers parse and render, nothing else.
Not here: what names mean, who waits, what is loaded (`runtime.gateway`). Slots are never imported.
"""
