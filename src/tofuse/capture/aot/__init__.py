"""Hand-off from AOTAutograd, the runtimes of its graphs, and double backward."""
