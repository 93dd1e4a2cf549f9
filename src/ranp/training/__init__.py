"""Training of full and slim networks: tasks, the loop, checkpoints, recipes.

`config` names what a run is, `tasks` what is learned, `loop` how, `run` puts them together in a
run directory, and `inference` evaluates and predicts with what came out.
"""
