# Everything goes through these targets; CI runs `make test`. Needs Python 3.11 or newer (with its
# venv module) and make; PYTHON=/path/to/python chooses another interpreter. No GPU needed.
.PHONY: help demo test test-cuda-build test-models soak fuzz docs lab env colab-env clean

help:
	@echo "make demo   run the tour notebook headless and print what a user sees"
	@echo "make lab    open the tour in JupyterLab"
	@echo "make test   run every check: linters, types, tests, notebooks, browser, old versions"
	@echo "make test-cuda-build   only the tests on a CUDA build of torch (5.5 GB), without a GPU"
	@echo "make test-models   only the cells with transformers and torch_geometric (make test runs them too)"
	@echo "make soak   500 replays in one kernel (make test runs 50)"
	@echo "make fuzz   a million mutated logs through the decoder (make test takes 20,000)"
	@echo "make docs   make docs/assertions.md from the catalogue of assertions"
	@echo "make clean  remove what the targets above made"

demo: env
	@.venv/bin/python scripts/demo.py

lab: env
	@sh scripts/lab

test: env colab-env
	@sh scripts/test

test-cuda-build: env
	@sh scripts/test-cuda-build

test-models: env
	@.venv/bin/python -m pytest -q tests/models

soak: env
	@CUDASSERT_SOAK=$${CUDASSERT_SOAK:-500} .venv/bin/python -m pytest -q --timeout=0 tests/kernel/test_soak.py

fuzz: env
	@CUDASSERT_FUZZ=$${CUDASSERT_FUZZ:-1000000} .venv/bin/python -m pytest -q --timeout=0 tests/fuzz

docs: env
	@.venv/bin/python -m scripts.make_docs

env:
	@sh scripts/make-env

colab-env: env
	@sh scripts/make-colab-env

clean:
	rm -rf .venv .venv-colab .venv-cuda build tests/screenshots
