"""Analyses that passes, fusion, planning and the report share."""
