"""What requests cost, in millionths of the server's currency: whole numbers, rounded once a request.

prices.py     a recipe's list prices, and what a request costs by them
device.py     how the machine's own time is shared out among those who used it
feedback.py   whether an answer was of use
compare.py    what the same would have cost at a provider's prices
daily.py      a team's day: totals, by hour, by model and adapter
page.py       the same as one page that needs nothing from elsewhere
"""
