"""The measurement of workloads: each peer runs in a separate process, in alternating rounds."""
