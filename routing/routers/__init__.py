"""What a router is.

definition.py   its YAML
router.py       ready to decide
versions.py     its content as files, by digest
"""
