# `make demo` and `make test` do everything on a fresh machine with Python 3.10+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two test processes with one compute thread each: fastest on a small machine, and no oversubscription.
JOBS   ?= 2

.PHONY: demo test lint style types pytest slow matrix peers bench docs networks clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,nnunet]"
	# nnU-Net brings it by way of timm and does not use it; this build breaks torchmetrics and lightning.
	$(BIN)/pip uninstall --quiet --yes torchvision
	@touch $(STAMP)

demo: $(STAMP)  ## the main job on embedded synthetic data, within a minute
	$(BIN)/ranp demo

# The types are checked beside the tests: alone, mypy would leave all cores but one idle.
test: $(STAMP) style  ## linters and the default tests
	$(MAKE) --no-print-directory --jobs=2 types pytest

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	# Whatever the environment says, modules are compiled once and not by every process.
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

slow: $(STAMP)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

matrix: $(STAMP)  ## the tests as other machines would run them, as far as this one can imitate them
	MACHINES="$(MACHINES)" $(BIN)/python -m tests.matrix $(TESTS)

peers: $(STAMP)  ## ranp and Torch-Pruning side by side, over the small networks of the zoo
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.peers

bench: $(STAMP)  ## speed and memory, as ratios measured side by side
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## the documentation site, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "Open build/docs/index.html"

networks: $(STAMP)  ## the table of networks that were tried, in docs/networks.md
	@mkdir -p build
	$(BIN)/python -m tests.zoo.report > build/networks.md
	mv build/networks.md docs/networks.md

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
