"""Generators: each draws case `index` of the endless synthetic data set `seed`."""
