"""Who runs a call: tables of entries, each with a guard, a runner and a reason."""
