"""Training on several ranks, each way that users write it, compared with eager and Inductor."""
