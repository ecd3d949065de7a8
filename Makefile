# `make demo` and `make test` each start from a fresh clone: scripts/setup.sh installs and builds what is missing.
PY := .venv/bin/python
ARGS ?=

.PHONY: help build test lint demo corpus-check clean
.PHONY: bench-kernels bench-mount bench-synthesis test-large
.PHONY: bench-write test-model test-kills test-churn test-clients
.PHONY: test-scalar test-sanitize test-aarch64 fuzz check-native

help:
	@echo 'make build               set up .venv and build; the command is .venv/bin/brevisfs'
	@echo 'make test                the test run (ARGS="-k name -x" goes to pytest)'
	@echo 'make demo                a real model: packed, mounted, loaded, compared'
	@echo 'make corpus-check DIR=…  every .safetensors of a folder, packed, mounted, compared (ARGS="--profile dense")'
	@echo 'make test-scalar         the tests of programs, on the kernels that any CPU has'
	@echo 'make test-sanitize       the C code on random cases under sanitizers (CASES=…)'
	@echo 'make test-aarch64        the same built for aarch64, under qemu (CASES=…)'
	@echo 'make fuzz                libFuzzer on decoder and encoder, ten minutes each (SECONDS=…)'
	@echo 'make check-native        the three above, shortened'
	@echo 'make bench-kernels       decoding and encoding next to memcpy (ARGS="--quick --peers --json OUT --files DIR")'
	@echo 'make bench-synthesis     the search with parts left out (FILES="model.safetensors", ARGS="--every 4 --phases")'
	@echo 'make bench-mount         reading through a mount next to a pass-through (ARGS="--quick --throttle 300 1000 --threads 1 2 4")'
	@echo 'make test-large          the memory that packing a sparse file of 20 GB takes (ARGS="--gigabytes 2")'
	@echo 'make bench-write         writing through a mount, and reading while a worker packs (ARGS="--quick DIR")'
	@echo 'make test-model          a mount next to a plain folder, STEPS random operations with SEED'
	@echo 'make test-kills          the daemon killed KILLS times at random instants, with SEED'
	@echo 'make test-churn          ROUNDS of saving, renaming and deleting leave nothing behind'
	@echo 'make test-clients        what clients do to models: all of those that are installed'
	@echo 'make lint                ruff and mypy --strict'
	@echo 'make clean               remove what was built'

build:
	@scripts/setup.sh

test: build
	$(PY) -m pytest $(ARGS)

test-scalar: build
	BREVISFS_CPU=scalar $(PY) -m pytest tests/property tests/golden tests/native $(ARGS)

CASES ?= 1500
test-sanitize: build
	@scripts/native_checks.sh sanitize $(CASES)

test-aarch64: build
	@scripts/native_checks.sh aarch64 $(CASES)

SECONDS ?= 600
fuzz: build
	@scripts/native_checks.sh fuzz $(SECONDS)

check-native: build
	@scripts/native_checks.sh sanitize 60
	@scripts/native_checks.sh aarch64 60
	@scripts/native_checks.sh fuzz 20

lint: build
	$(PY) -m ruff check .
	$(PY) -m mypy

demo: build
	@$(PY) scripts/demo.py $(ARGS)

corpus-check: build
	@test -n "$(DIR)" || { echo 'usage: make corpus-check DIR=folder [ARGS="--profile dense --targets targets.json"]' >&2; exit 2; }
	@$(PY) scripts/corpus_check.py $(ARGS) "$(DIR)"

bench-kernels: build
	@$(PY) -m bench.kernels $(ARGS)

bench-synthesis: build
	@test -n "$(FILES)" || { echo 'usage: make bench-synthesis FILES="model.safetensors …" [ARGS="--profile dense --every 4"]' >&2; exit 2; }
	@$(PY) -m bench.synthesis $(ARGS) $(FILES)

bench-mount: build
	@$(PY) -m bench.mount $(ARGS)

test-large: build
	@$(PY) -m bench.large $(ARGS)

bench-write: build
	@$(PY) -m bench.write $(ARGS)

SEED ?= 0
STEPS ?= 100000
test-model: build
	BREVISFS_MODEL_STEPS=$(STEPS) BREVISFS_MODEL_SEED=$(SEED) $(PY) -m pytest tests/mount/test_model.py $(ARGS)

KILLS ?= 500
test-kills: build
	BREVISFS_KILLS=$(KILLS) BREVISFS_KILLS_SEED=$(SEED) $(PY) -m pytest -s tests/faults/test_kills.py $(ARGS)

ROUNDS ?= 5000
test-churn: build
	BREVISFS_CHURN=$(ROUNDS) $(PY) -m pytest tests/mount/test_churn.py $(ARGS)

test-clients: build
	@scripts/clients.sh $(ARGS)

clean:
	rm -rf build dist *.egg-info .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f brevisfs/_native/_brevis*.so brevisfs/_native/_brevis.c native/*.o
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
