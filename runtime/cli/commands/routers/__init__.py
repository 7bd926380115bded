"""`roundhouse routers`: one name in front of many models.

keeping.py   add, list, show, remove; aliases, rollback
fitting.py   from labelled examples to a fitted model; `data.py` reads them
judging.py   explain one decision, evaluate many, report what came of them
"""
