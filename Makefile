# Everything a fresh machine needs is set up by the first target that needs it; `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test quick lint fix lock setup clean
SHELL := /bin/bash
UV_VERSION := 0.13.9
PY := .venv/bin/python
# Modules are compiled once, at installation: a shell that forbids it would double every start.
export PYTHONDONTWRITEBYTECODE :=
export HF_HUB_OFFLINE := 1
export DO_NOT_TRACK := 1

help:                ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready   ## make the environment at .venv (about 7 GB, about 2 minutes)

run: .venv/ready     ## set up, then train a small real model on the quickstart tasks and show that it got better
	@.venv/bin/headrace run quickstart

# Two tests at a time share the machine; a bound of time that one broke beside another it must keep alone.
test: lint           ## set up, lint, and run every test
	@echo "== tests"
	@$(PY) -m pytest -n 2 --dist worksteal -q || { test $$? -eq 1 && echo "== what failed, once more and alone" && \
	  $(PY) -m pytest --last-failed --maxfail 3 -q; }

quick: .venv/ready   ## the tests that take seconds
	@$(PY) -m pytest -n 2 --dist worksteal -q -m "not slow and not vllm"

lint: .venv/ready    ## check format, lint and types; changes no file
	@echo "== lint"
	@.venv/bin/ruff format --check --quiet . && .venv/bin/ruff check --quiet . && .venv/bin/ty check --quiet .

fix: .venv/ready     ## format, and mend what the linter can
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

lock: .venv/ready    ## work the lock out again from pyproject.toml
	@.venv/bin/uv pip compile pyproject.toml --extra cpu --extra spark --extra docker --extra dev --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet --output-file deploy/requirements.lock
	@.venv/bin/uv pip compile pyproject.toml --extra gpu --extra spark --extra docker --extra dev --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet --output-file deploy/requirements-gpu.lock

clean:               ## remove the environment and caches; results (.headrace) stay
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info build

.venv/ready: deploy/requirements.lock pyproject.toml
	@echo "== setting up .venv: Python packages from deploy/requirements.lock (about 7 GB the first time)"
	@command -v python3.11 >/dev/null || { echo "error: python3.11 is not on PATH; install Python 3.11"; exit 1; }
	@test -x $(PY) || python3.11 -m venv .venv
	@.venv/bin/uv --version 2>/dev/null | grep -q "uv $(UV_VERSION) " || $(PY) -m pip install --quiet uv==$(UV_VERSION)
	@.venv/bin/uv pip sync --quiet --require-hashes --compile-bytecode deploy/requirements.lock
	@.venv/bin/uv pip install --quiet --no-deps --editable .
	@touch $@
	@echo "== .venv is ready"
