"""Training of full and slim networks: recipes, the loop, checkpoints.

`config` says what a run is, `loop` trains, `run` puts them together in a run directory, and
`inference` evaluates and predicts with what came out.
"""
