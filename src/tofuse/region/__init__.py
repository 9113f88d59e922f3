"""Partition: the regions of a graph, with a verdict for each considered edge."""

from tofuse.region.data import Partition, Region, Verdict, show_partition
from tofuse.region.rules import Reason, RejectedKernel, Rule

__all__ = ["Partition", "Reason", "Region", "RejectedKernel", "Rule", "Verdict", "show_partition"]
