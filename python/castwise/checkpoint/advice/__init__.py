"""Advise which format or scheme each weight of a checkpoint gets.

Weights are surveyed in one pass; candidates are what the planner would write of them, with the
bytes of their codes and scales; a knapsack chooses.
"""
