"""Partition -> Plan: build the steps of a call, then reuse memory and group launches."""
