"""The node provider of `local.py`, under the name by which the autoscaler imports it."""

from raydense.runtime.ray_internals import simulated_nodes

LocalNodes = simulated_nodes()
