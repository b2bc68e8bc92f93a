PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps

.DEFAULT_GOAL := help
.PHONY: help install install-dev run services services-status services-down test lint openapi chaos cluster image-test bench demo screenshots lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with what the service needs (requirements.lock)

install-dev: $(DEV_STAMP) ## create .venv with the tools for development, too (requirements-dev.lock)

# A stamp depends on its lock, so that a changed lock is installed once and an unchanged one costs nothing.
# --clear removes packages of an older lock, and the other stamp.
$(STAMP): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot create a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) -r requirements.lock
	@touch $@

$(DEV_STAMP): requirements-dev.lock $(STAMP)
	$(PIP_INSTALL) -r requirements-dev.lock
	@touch $@

run: install ## start the whole system on this machine
	$(BIN)/python manage.py up

services: ## start the servers that the tests and benchmarks use, or others: make services NAMES="tidb"
	tools/services/services up $(NAMES)

services-status: ## print which of these servers are running, and their URLs
	tools/services/services status $(NAMES)

services-down: ## stop the servers that `make services` started
	tools/services/services down $(NAMES)

test: install-dev ## run the tests on SQLite, and on PostgreSQL, MariaDB and MySQL if they are running (`make services`)
	tools/test.sh $(ARGS)

lint: install-dev ## run ruff, its formatter and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

openapi: install ## update docs/openapi.json
	$(BIN)/python manage.py spectacular --validate --fail-on-warn --format openapi-json --file docs/openapi.json

# Not in parallel: these tests kill processes and measure time, and would disturb each other.
chaos: install-dev ## run the long tests that kill processes and brokers
	ENV_FILE=/dev/null $(BIN)/python -m pytest -m "chaos or slow"

cluster: install-dev ## kill and freeze machines that share a database: make cluster NAMES=mysql SECONDS=600
	@for name in $(or $(NAMES),postgres mariadb mysql); do \
	  url=$$(tools/services/services url $$name) && \
	  CHAOS_SECONDS=$(SECONDS) DATABASE_URL=$${url%/*}/cluster ENV_FILE=/dev/null \
	    $(BIN)/python -m pytest -m chaos tests/chaos/test_machines_come_and_go.py || exit 1; \
	done

image-test: install-dev ## build the container image and run its processes (needs root, buildah and debootstrap)
	ENV_FILE=/dev/null $(BIN)/python -m pytest -m slow tests/deploy/test_image.py

bench: install ## run the benchmarks, or one: make bench NAME=burst; compare with a commit: make bench NAME=burst AGAINST=main~5
	$(BIN)/python -m benchmarks$(if $(AGAINST),.compare $(NAME) --against $(AGAINST) $(if $(RUNS),--runs $(RUNS)),$(if $(NAME),.$(NAME))) $(ARGS)

demo: install ## show the running system with sample calls
	$(BIN)/python manage.py demo

screenshots: install-dev ## update docs/screenshots from a system with sample calls (needs chromium)
	$(BIN)/python -m tools.screenshots $(ARGS)

lock: ## update both requirements files from pyproject.toml: make lock ARGS=--upgrade takes the newest versions
	PYTHON=$(PYTHON) tools/lock.sh $(ARGS)

clean: ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
