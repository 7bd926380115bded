"""Costs of requests, in whole millionths of the currency, each rounded once.

prices.py     list prices of a recipe, the cost of a request at those prices, and shares of accelerator time
compare.py    the same traffic at other providers' prices
daily.py      a team's day: totals, by hour, by model and adapter, also as a self-contained page
"""
