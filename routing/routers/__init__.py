"""What a router is.

router.py     ready to decide
content.py    its definition and models as files, by digest

Its YAML is `registry.recipes.router`, its versions and aliases are `registry.state`'s.
"""
