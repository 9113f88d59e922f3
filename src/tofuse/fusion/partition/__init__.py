"""Which ops form a region: legality, profitability, memory limit."""
