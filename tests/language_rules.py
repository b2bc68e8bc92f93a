"""The rules of the language, asked of the source text itself (tests/test_language.py)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from tests.source_rules import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Participles and pronouns: a module is a noun that says what is inside, and a function begins with a verb.
PARTICIPLES = """
    answered asked begun broken checked chosen counted described done ended filled found given held kept known listed lost
    made marked named narrowed noted opened parked pointed restored said seen sent shown sought stored taken told undone
    wanted"""
PRONOUNS = "what which who whom whose this that these those other others"
MODULE_WORDS = _split(
    f"{PARTICIPLES} {PRONOUNS} away doing filling finding weathering utils util helpers misc common"
)
FUNCTION_WORDS = _split(
    f"{PARTICIPLES} {PRONOUNS} about after among around before behind beside by during few in many most of under"
    " until while within"
)
CONSTANT_WORDS = _split("MOST LEAST LONGEST SHORTEST FEW FEWEST BIGGEST SMALLEST")
# Prepositions, conjunctions and relative pronouns: no sentence that begins with one stands on its own.
DOCSTRING_STARTS = _split(
    "about after also among and as at before behind beside beyond but by during for from if in into of on or out over"
    " since so than that those to under until unless what which while who whom whose with within without"
)
# The guarantees of delivery, by the name that everybody uses.
TERMS = re.compile("AT_(LEAST|MOST)_ONCE")


def check_module_name(source: Source) -> list[str]:
    words = set(re.split(r"[._]", source.name)) & MODULE_WORDS
    return [f"{source.name}: a module is not named {word!r}" for word in sorted(words)]


def check_functions(source: Source) -> list[str]:
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            if node.name.strip("_").split("_")[0] in FUNCTION_WORDS and not is_property:
                found.append(source.complaint(node, f"{node.name} does not begin with a verb"))
    return found


def check_constants(source: Source) -> list[str]:
    return [
        source.complaint(node, f"{node.id}: begin with MAX or MIN")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.isupper()
        if set(node.id.split("_")) & CONSTANT_WORDS and not TERMS.fullmatch(node.id)
    ]


def check_docstrings(source: Source) -> list[str]:
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            docstring = ast.get_docstring(node) or ""
            first = re.match(r"[A-Za-z]*", docstring)
            if first and first[0].lower() in DOCSTRING_STARTS:
                found.append(source.complaint(node, f"begin with a verb or a noun: {docstring[:60]!r}"))
    return found


def find_repeated_classes(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Return the class names that several modules have, each with these modules."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(source.name)
    return {name: places for name, places in sorted(modules.items()) if len(places) > 1}
