"""The partition of a graph: its regions, its alias analysis, and a verdict for each edge."""

from tofuse.graph_partition.data import Partition, show_partition

__all__ = ["Partition", "show_partition"]
