run: ; .venv/bin/python tests/run_notebooks.py $(if $(CHAPTER),--chapter $(CHAPTER))
.PHONY: run
