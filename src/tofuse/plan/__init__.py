"""From a partition to the steps of a call: memory, donation, reuse, launch groups."""
