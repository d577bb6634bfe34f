# make help lists what can be made. Everything is installed into .venv on first use.

PYTHON ?= python3
PIP_ARGS ?=
LAB_ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed

help:
	@echo "make book                build the book into _build/html"
	@echo "make test                prove everything again: code, scripts, exercises, notebooks, pages"
	@echo "make lab                 open the notebooks in JupyterLab"
	@echo "make run                 execute all notebooks and store them; CHAPTER=03 for one"
	@echo "make triton              install Triton into .venv, for chapter 09 on Linux"
	@echo "make gpu                 kernels and notebooks on this machine's GPUs, measured and stored"
	@echo "make clean               remove what was built (.venv stays)"
	@echo
	@echo "PYTHON=python3.12        the Python (3.11 or newer) that makes .venv"
	@echo "PIP_ARGS='...'           more words for pip, such as another index for PyTorch:"
	@echo "                         see pytorch.org's selector and README.md"
	@echo "LAB_ARGS='...'           more words for JupyterLab: --no-browser --port 8890;"
	@echo "                         in a container also --allow-root"
	@echo "BOOK_REPOSITORY=https... the repository that the pages' buttons lead to"

$(INSTALLED): requirements.txt constraints.txt pyproject.toml
	@$(PYTHON) -c '' >/dev/null 2>&1 || { \
	  echo "$(PYTHON) does not run here: say make PYTHON=python3.12 with a Python, 3.11 or newer, that does." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "The book needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -n 1): say make PYTHON=python3.12 with one that you have." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the module venv: install it (on Debian and Ubuntu the package python3-venv) and say make again." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "Making .venv, which takes minutes the first time."; $(PYTHON) -m venv --clear .venv; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r requirements.txt
	@touch $@

jupyter-book-1: $(INSTALLED)
	@$(BIN)/python -c 'import sys; from importlib.metadata import version; sys.exit(version("jupyter-book")[:2] != "1.")' 2>/dev/null || { \
	  echo "Jupyter Book 1 is not what .venv holds, and another one builds nothing from this book: remove .venv and say make again." >&2; exit 1; }

book: jupyter-book-1
	$(BIN)/jupyter-book build . -n -W --keep-going --all
	@echo
	@echo "The book lies in _build/html. To read it at http://localhost:8000 (or another port):"
	@echo "    $(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html 8000"

test: jupyter-book-1
	$(BIN)/python tests/run_all.py

lab: $(INSTALLED)
	$(BIN)/jupyter lab book $(LAB_ARGS)

run: $(INSTALLED)
	@$(BIN)/python tests/run_notebooks.py $(if $(CHAPTER),--chapter $(CHAPTER))

# A PyTorch for CUDA brings the Triton that it needs.
triton: $(INSTALLED)
	@$(BIN)/python -c 'import triton' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) triton==3.9.0

gpu: triton
	@$(BIN)/python tests/run_gpu.py

clean:
	rm -rf _build book/_run .pytest_cache .ruff_cache
	find book helpers tests \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

.PHONY: help book test lab run triton gpu clean jupyter-book-1
