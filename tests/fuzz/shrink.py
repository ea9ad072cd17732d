"""Makes a case smaller as long as it shows the same kind of finding."""

import ast
import copy
import itertools
import time

import child

SIMPLE = ["0", "None", "x(3)", "x(2, 3)"]


def smaller(source):
    """Cases with something left out or replaced, the largest cuts first."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for at, node in enumerate(nodes):
        for change in changes(node):
            other = copy.deepcopy(tree)
            try:
                change(list(ast.walk(other))[at])
                text = ast.unparse(ast.fix_missing_locations(other)) + "\n"
            except (AttributeError, ValueError, SyntaxError):
                continue
            if text != source:
                yield text


def changes(node):
    """Ways to make one node of the tree smaller, as functions of its copy."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and len(body) > 1:
        for n in reversed(range(len(body))):
            yield lambda node, n=n: node.body.pop(n)
    if isinstance(node, ast.Call):
        for n in range(len(node.keywords)):
            yield lambda node, n=n: node.keywords.pop(n)
        for n in reversed(range(len(node.args))):
            yield lambda node, n=n: node.args.pop(n)
            for text in SIMPLE:
                yield lambda node, n=n, text=text: put(node.args, n, text)
            if isinstance(node.args[n], ast.Call) and node.args[n].args:
                yield lambda node, n=n: node.args.__setitem__(n, node.args[n].args[0])
    if isinstance(node, ast.List | ast.Tuple):
        for n in range(len(node.elts)):
            yield lambda node, n=n: node.elts.pop(n)


def put(items, n, text):
    items[n] = ast.parse(text, mode="eval").body


def shrunk(finding, jobs, seconds=30.0):
    """The smallest case found that shows a finding, or the finding itself if it does not show
    again."""
    best = child.outcome_of(finding.source)
    if best is None or best.kind != finding.kind:
        finding.detail += "\n(not seen again when run alone)"
        return finding
    until = time.monotonic() + seconds
    while True:
        sources = itertools.takewhile(lambda _: time.monotonic() < until, smaller(best.source))
        results = child.outcomes(sources, jobs)
        found = next((r for r in results if r and r.kind == finding.kind), None)
        results.close()
        if found is None:
            return best
        best = found
