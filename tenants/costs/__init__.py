"""Costs of requests, in whole millionths of the currency, rounded once each.

prices.py     a recipe's list prices, what a request costs by them, and shares of the machine's own time
compare.py    the same traffic at a provider's prices
daily.py      a team's day: totals, by hour, by model and adapter, also as one self-contained page
"""
