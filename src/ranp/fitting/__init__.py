"""Fitting a network into budgets of memory, operations, parameters and time."""
