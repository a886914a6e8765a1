# Two commands matter: `make demo` and `make test`.  Both bring what they need.
#
#   EMACS=/path/to/emacs   another Emacs        PYTHON=/path/to/python3   another Python
#   GPTEL_DIR=/path        a checkout of gptel instead of the packaged one
#   PYTEST='-k name'       arguments for pytest
#   ERT='"name"'           an ERT selector      ERT_FILES='tests/elisp/x-tests.el'

EMACS ?= emacs
ERT ?= t
ERT_FILES ?= $(sort $(wildcard tests/elisp/*-tests.el))
BIN := .venv/bin
# The tests' scripted servers run in the environment, whatever python3 is on PATH.
BATCH = PYTHON="$(CURDIR)/$(BIN)/python" $(EMACS) -Q --batch $$(.ci/emacs-deps) \
	-L elisp -L tests/elisp

.PHONY: help deps demo table test lint lint-python lint-elisp test-python test-elisp test-e2e bench lock \
	clean distclean

help: ## say what can be done here
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 22

deps: ## bring the Python environment, Emacs and gptel (once; then quick)
	@.ci/venv
	@.ci/emacs-deps >/dev/null

demo: deps ## a gptel conversation, plain and with the mode on, and what each sent
	@$(BIN)/python -m tests.demo

table: deps ## measure the continuity table, and write it into README.md and docs/
	@$(BIN)/python -m tests.table

test: lint test-python test-elisp test-e2e ## everything that CI runs

lint: lint-python lint-elisp ## format, lint, types; compile and check the Elisp

lint-python: deps
	@failed=0; for tool in "ruff check ." "ruff format --check ." mypy; do \
	    echo "$$tool"; $(BIN)/$$tool || failed=1; done; exit $$failed

lint-elisp: deps
	$(BATCH) -l tests/elisp/lint.el -f lint-batch-and-exit

test-python: deps ## pytest, without the end-to-end runs
	$(BIN)/python -m pytest -m 'not e2e' $(PYTEST)

test-elisp: deps ## ERT, a fresh Emacs for each file
	@failed=; for file in $(ERT_FILES); do echo "== $$file"; \
	    $(BATCH) -l tests/elisp/run.el "$$file" '$(ERT)' 2>&1 || failed="$$failed $$file"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

test-e2e: deps ## real Emacs, real gptel, the backend and a provider on the loopback interface
	$(BIN)/python -m pytest -m e2e $(PYTEST)

bench: deps ## the figures, as a table
	@$(BIN)/python -m bench

lock: ## pin the Python dependencies anew (needs uv)
	.ci/lock

clean: ## remove build products and caches
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -path ./.emacs-deps -prune -o -name __pycache__ -type d -print0 | \
	    xargs -0 rm -rf
	find elisp tests -name '*.elc' -delete

distclean: clean ## also remove what `make deps` brought
	rm -rf .venv .emacs-deps .npm-deps
