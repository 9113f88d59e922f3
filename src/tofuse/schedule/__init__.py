"""Choose and apply schedules: loop order, tiles, threads, vectors, GPU launches."""
