"""A notebook that keeps every rule, for tests to spoil."""

from nbformat import NotebookNode, v4

HEAD = """# A chapter

Does it hold?

| needs | minutes to read | seconds to run | runs on |
| --- | --- | --- | --- |
| nothing | 5 | 2 | CPU |
"""
EXERCISE = """:::{{exercise}} Double (5 minutes)
:label: ex-01-{0}
:::"""
SOLUTION = """:::{{solution-start}} ex-01-{0}
:class: dropdown
:::"""
SVG = {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>", "text/plain": "<Drawing: x>"}
FIGURE = {"image": {"alt": "a line"}, "figure": {"caption": "It rises.", "name": "fig-rise"}}


def text(source: str) -> NotebookNode:
    return v4.new_markdown_cell(source)


def code(source: str, *tags: str, output: NotebookNode | None = None, **metadata) -> NotebookNode:
    metadata |= {"tags": list(tags)} if tags else {}
    outputs = [output] if output else []
    return v4.new_code_cell(source, metadata=metadata, outputs=outputs, execution_count=1)


def printed(words: str, name: str = "stdout") -> NotebookNode:
    return v4.new_output("stream", name=name, text=words + "\n")


def shown(data: dict[str, str]) -> NotebookNode:
    return v4.new_output("display_data", data=data)


def failed() -> NotebookNode:
    return v4.new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])


def sample() -> NotebookNode:
    """A chapter of 25 and more cells that no rule finds anything wrong with."""
    exercises = []
    for word in ("one", "two", "three"):
        check = f'exercises.check("01-{word}", answer)'
        exercises += [
            text(EXERCISE.format(word)),
            code(check, "stub", output=printed(f"01-{word}: not written yet")),
            text(SOLUTION.format(word)),
            code(check, "solution", output=printed(f"01-{word}: passed")),
            text(":::{solution-end}\n:::"),
        ]
    explored = shown({"text/html": '<div class="explore"></div>', "text/plain": "explore(k)"})
    return v4.new_notebook(
        cells=[
            text(HEAD),
            code("from pathlib import Path\n\nPath('_run').mkdir(exist_ok=True)"),
            text("A script says hello."),
            code('%%writefile _run/01_hello.py\nprint("hello")\n', output=printed("Writing x")),
            text("How long does it take?"),
            code("seconds = measure()", "nbval-ignore-output", output=printed("0.3 s")),
            code("assert seconds < 10"),
            text("It may fail."),
            code("raise ValueError('no')", "raises-exception", output=failed()),
            text("A picture."),
            code("figures.rise()", output=shown(SVG), mystnb=FIGURE),
            text("The same, on sliders."),
            code("explore(figures.rise, k=[1, 2])", output=explored),
            text(":::{admonition} Takeaway\n:class: takeaway\n\nIt holds.\n:::"),
            *exercises,
            text("Sources. Next."),
        ]
    )
