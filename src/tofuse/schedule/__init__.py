"""Loop order, tiles, threads and vectors for a kernel."""
