"""Runs that show something: the demo, the paper's tables and figures."""
