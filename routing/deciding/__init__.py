"""The decision. Pure: the same features, router and facts give the same decision, for traffic, explain and offline.

decide.py   the stages in their order
rules.py    which rules match
"""
