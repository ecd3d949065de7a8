# `make demo` and `make test` each start from a fresh clone: scripts/setup.sh installs and builds what is missing.
PY := .venv/bin/python
ARGS ?=

.PHONY: help build test lint demo corpus-check clean

help:
	@echo 'make build               set up .venv and build; the command is .venv/bin/brevisfs'
	@echo 'make test                the test run (ARGS="-k name -x" goes to pytest)'
	@echo 'make demo                a real model: packed, mounted, loaded, compared'
	@echo 'make corpus-check DIR=…  every .safetensors of a folder, packed, mounted, compared (ARGS="--profile dense")'
	@echo 'make lint                ruff and mypy --strict'
	@echo 'make clean               remove what was built'

build:
	@scripts/setup.sh

test: build
	$(PY) -m pytest $(ARGS)

lint: build
	$(PY) -m ruff check .
	$(PY) -m mypy

demo: build
	@$(PY) scripts/demo.py $(ARGS)

corpus-check: build
	@test -n "$(DIR)" || { echo 'usage: make corpus-check DIR=folder [ARGS="--profile dense --targets targets.json"]' >&2; exit 2; }
	@$(PY) scripts/corpus_check.py $(ARGS) "$(DIR)"

clean:
	rm -rf build dist *.egg-info .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f brevisfs/_native/_brevis*.so brevisfs/_native/_brevis.c native/*.o
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
