# Two targets are all a newcomer needs: `make demo` and `make test`.
# Everything is installed into .venv, from PyPI alone, with plain pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL ?=
PROMPT ?= What is the capital of France? Answer in one sentence.
SCHEME ?= q4_k_m

STANDARD := . ./plugins/llmfit-gguf ./plugins/llmfit-llama ./plugins/llmfit-qwen2 ./plugins/llmfit-llamacpp
OTHERS := ./plugins/llmfit-bitnet ./plugins/llmfit-deepseek2 ./plugins/llmfit-gemma ./plugins/llmfit-fp8 ./plugins/llmfit-mlx ./plugins/llmfit-phi3 ./plugins/llmfit-open ./plugins/llmfit-classics ./plugins/llmfit-bert ./plugins/llmfit-awq ./plugins/llmfit-gptq ./plugins/llmfit-compressed-tensors ./plugins/llmfit-gptoss ./plugins/llmfit-recurrent
EDITABLE = $(addprefix -e ,$(STANDARD) $(OTHERS))

.PHONY: demo test test-slow test-gpu check format bench docs architectures clean

## demo: set up, then convert a real model to Q4_K_M and ask it something. MODEL=<folder or hub id> takes another.
demo: $(VENV)/demo.stamp
	PATH="$(CURDIR)/$(BIN):$$PATH" MODEL="$(MODEL)" PROMPT="$(PROMPT)" SCHEME="$(SCHEME)" sh tools/demo.sh

## test: set up, then lint, types and the whole suite, core and every plugin.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -m "not slow and not gpu and not real"

## test-slow: what takes minutes, and what needs the real model from PyPI.
test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -m "slow or real"

## test-gpu: what needs an accelerator.
test-gpu: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -m gpu

## check: lint, formatting, types, layers.
check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy llmfit_core $(wildcard plugins/*/src plugins/*/llmfit_*.py contrib/*/llmfit_*.py)
	$(BIN)/lint-imports

## format: let ruff mend what it can.
format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .

## bench: speed against llama.cpp's own tools; see benchmarks/README.md.
bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/bench_startup.py
	$(BIN)/python benchmarks/bench_convert.py

## docs: regenerate what is generated.
docs: $(VENV)/dev.stamp
	$(BIN)/python tools/gen_index.py
	$(BIN)/python tools/gen_hooks_reference.py
	$(BIN)/python tools/gen_cli_reference.py
	$(BIN)/python tools/gen_errors_reference.py
	$(BIN)/python tools/gen_architectures.py

## architectures: measure every architecture's parity anew (minutes), and write the page of them.
architectures: $(VENV)/dev.stamp
	$(BIN)/python tools/gen_architectures.py --measure

clean:
	rm -rf $(VENV) demo

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PIP) install --quiet $(addprefix -e ,$(STANDARD) $(OTHERS))
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp requirements-dev.txt contrib/plugin-template/pyproject.toml
	$(PIP) install --quiet -r requirements-dev.txt
	$(PIP) install --quiet $(EDITABLE) -e ./contrib/plugin-template
	touch $@
