"""What tile programs cost, and on which card."""
