"""Horovod's operations: named, asynchronous, in an order that the ranks agree on."""
