"""What a request may use at most, told before it runs, and a recipe's prices as whole numbers.

The rest of charging knows nothing of requests and recipes: `tenants.limits`, `tenants.costs`.
"""
