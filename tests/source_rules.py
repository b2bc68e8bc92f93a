"""The rules of the architecture, asked of the source text itself (tests/test_architecture.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APPS = ("orchestration", "timers", "execution", "outbox")
PACKAGES = (*APPS, "eventservice")


@dataclass(frozen=True)
class Source:
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def complaint(self, node: ast.AST, what: str) -> str:
        return f"{self.name}, line {getattr(node, 'lineno', '?')}: {what}"


def list_sources() -> list[Source]:
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [
        Source(_get_module_name(path), path.read_text())
        for path in files
        if "migrations" not in path.relative_to(ROOT).parts
    ]


def list_test_sources() -> list[Source]:
    return [
        Source(_get_module_name(path), path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py"))
    ]


def _get_module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


# --- imports --------------------------------------------------------------------------------------------------


def find_imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Return the modules of this project that a module imports, at its top or anywhere else in it."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*source.name.split(".")[: -node.level], *filter(None, [base])])
            names = [f"{base}.{a.name}" if _is_module(f"{base}.{a.name}") else base for a in node.names]
        else:
            continue
        yield from ((node, name) for name in names if name.split(".")[0] in PACKAGES)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def find_forbidden_imports(source: Source, allowed: Callable[[str, str], bool]) -> list[str]:
    return [
        source.complaint(node, f"imports {name}")
        for node, name in find_imports(source)
        if not allowed(source.name, name)
    ]


def is_admin(unit: str) -> bool:
    return unit.endswith(".admin")


def get_unit(module: str) -> str:
    """Return the unit of the architecture that a module belongs to: an app, a package or top module of eventservice, or the
    admin module of one of these.
    """
    parts = module.split(".")
    unit = ".".join(parts[:2]) if parts[0] == "eventservice" else parts[0]
    return f"{unit}.admin" if parts[-1] == "admin" and not unit.endswith("admin") else unit


def find_import_cycles(sources: Iterable[Source]) -> list[list[str]]:
    """Return the groups of units that import each other, directly or through others."""
    graph: dict[str, set[str]] = {}
    for source in sources:
        targets = {get_unit(name) for _, name in find_imports(source)}
        graph.setdefault(get_unit(source.name), set()).update(targets)
    reachable = {unit: _find_reachable(graph, unit) for unit in graph}
    groups = {
        tuple(sorted(other for other in above if unit in reachable.get(other, set())))
        for unit, above in reachable.items()
        if unit in above
    }
    return [list(group) for group in sorted(groups)]


def _find_reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        unit = waiting.pop()
        new = graph.get(unit, set()) - {unit} - found
        found |= new
        waiting += new
    return found


def find_foreign_private_imports(source: Source) -> list[str]:
    """Return imports of a name that begins with an underscore from another package."""
    home = source.name.rsplit(".", 1)[0]
    return [
        source.complaint(node, f"imports {node.module}.{alias.name}")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
        for alias in node.names
        if alias.name.startswith("_") and not is_within(node.module or "", home)
    ]


# --- reads and writes of tables -------------------------------------------------------------------------------

WRITES = {
    "create",
    "bulk_create",
    "get_or_create",
    "update_or_create",
    "update",
    "bulk_update",
    "delete",
    "save",
    "_raw_delete",
}
BULK_WRITES = {"insert_rows", "update_rows", "upsert_rows"}
WRITE_VERBS = r"\b(?:INSERT\s+INTO|REPLACE\s+INTO|UPDATE|DELETE\s+FROM|TRUNCATE(?:\s+TABLE)?)\s+[\"`]?"


def get_name_chain(node: ast.AST) -> list[str]:
    """Return the names along `a.b(…).c[…]`, from left to right."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=attr):
            return [*get_name_chain(value), attr]
        case (
            ast.Call(func=inner)
            | ast.Subscript(value=inner)
            | ast.Await(value=inner)
            | ast.NamedExpr(value=inner)
        ):
            return get_name_chain(inner)
    return []


def find_writes(source: Source, models: set[str], tables: set[str]) -> list[str]:
    """Return writes of these models, by the ORM, in bulk or in SQL, as far as the text shows them."""
    theirs = models | _find_aliases(source, models)
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            if theirs & set(get_name_chain(node.func)[:-1]):
                found.append(source.complaint(node, f"writes: {'.'.join(get_name_chain(node.func))}"))
        elif isinstance(node, ast.Call) and node.args and BULK_WRITES & set(get_name_chain(node.func)[-1:]):
            found += [source.complaint(node, "writes in bulk")] * bool(
                models & set(get_name_chain(node.args[0]))
            )
    for node, text in find_sql_texts(source):
        names_table = re.search(WRITE_VERBS + f"(?:{'|'.join(sorted(tables))})\\b", text, re.IGNORECASE)
        is_open = re.search(WRITE_VERBS + r"\{\}", text, re.IGNORECASE) and models & _find_names(source)
        if names_table or is_open:
            found.append(source.complaint(node, f"writes in SQL: {' '.join(text.split())[:60]}"))
    return found


def _find_aliases(source: Source, models: set[str]) -> set[str]:
    """Return names of rows or queries of these models: annotated, assigned from them, or looped over them."""
    names: set[str] = set()
    for _ in range(2):  # once more for what was assigned from a name found later in the text
        for node in ast.walk(source.tree):
            match node:
                case ast.arg(arg=name, annotation=ast.AST() as said) if models & {
                    n for e in ast.walk(said) for n in get_name_chain(e)
                }:
                    names.add(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if (models | names) & set(
                    get_name_chain(value)
                ):
                    names.add(name)
                case (
                    ast.For(target=ast.Name(id=name), iter=value)
                    | ast.comprehension(target=ast.Name(id=name), iter=value)
                ) if (models | names) & set(get_name_chain(value)):
                    names.add(name)
    return names


def _find_names(source: Source) -> set[str]:
    return {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}


def find_sql_texts(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """Yield every string, docstrings too, with {} for each value of a formatted one."""
    inner = {
        part for node in ast.walk(source.tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            yield node, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node, node.value


def find_tenant_models(all_sources: Iterable[Source]) -> set[str]:
    """Return the names of all classes that derive from TenantScopedModel."""
    return {
        node.name
        for source in all_sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        and any(get_name_chain(base)[-1:] == ["TenantScopedModel"] for base in node.bases)
    }


def find_unscoped_reads(source: Source, models: set[str]) -> list[str]:
    """Return uses of a tenant model's managers that neither begin with a tenant nor name `across_tenants`."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and models & set(get_name_chain(node.value)[-1:]):
            is_raw = node.attr in {"_default_manager", "_base_manager"}
            if is_raw or (node.attr == "objects" and not _is_scoped(source, node)):
                found.append(source.complaint(node, f"unscoped: {'.'.join(get_name_chain(node))}"))
        elif isinstance(node, ast.Call) and get_name_chain(node.func)[-1:] in SHORTCUTS:
            # Given a model, Django's shortcuts read through its default manager.
            first = get_name_chain(node.args[0]) if node.args else []
            if len(first) == 1 and first[0] in models:
                found.append(source.complaint(node, f"unscoped: {ast.unparse(node)}"))
    return found


def _is_scoped(source: Source, manager: ast.expr) -> bool:
    match source.parents.get(manager):
        case ast.Attribute(attr=attr):
            return attr in SCOPED
        case ast.Assign(targets=[ast.Name(id=alias)]):
            uses = [n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == alias]
            return all(_is_scoped(source, n) for n in uses if isinstance(n.ctx, ast.Load))
    return False


SHORTCUTS = (["get_object_or_404"], ["get_list_or_404"])
# A new row carries its tenant in itself.
SCOPED = {"for_tenant", "create", "bulk_create"}


def find_table_uses(source: Source, models: set[str], tables: set[str]) -> list[str]:
    """Return imports and uses of these models, and strings that name them or their tables."""
    tables_or_models = re.compile(rf"\b(?:{'|'.join(sorted(models | tables))})\b", re.IGNORECASE)
    docstrings = _find_docstrings(source)
    found = []
    for node in ast.walk(source.tree):
        match node:
            case ast.alias(name=name) | ast.Name(id=name) | ast.Attribute(attr=name) if name in models:
                found.append(source.complaint(node, f"uses {name}"))
            case ast.Constant(value=str(text)) if node not in docstrings and tables_or_models.search(text):
                found.append(source.complaint(node, f"names {' '.join(text.split())[:60]}"))
    return found


def _find_docstrings(source: Source) -> set[ast.AST]:
    return {
        node.body[0].value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


MANAGERS = {"objects", "across_tenants", "_default_manager", "_base_manager"}


def find_manager_uses(source: Source, models: set[str]) -> list[str]:
    """Return uses of the managers of these models."""
    return [
        source.complaint(node, f"uses {'.'.join(get_name_chain(node))}")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in MANAGERS
        and models & set(get_name_chain(node.value)[-1:])
    ]


def find_joins(source: Source, relation: str) -> list[str]:
    """Return lookups that follow a relation, as `relation__column`, in keyword arguments and strings."""
    return [
        source.complaint(node, f"follows {relation}")
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.keyword) and (node.arg or "").startswith(f"{relation}__"))
        or (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.lstrip("-").startswith(f"{relation}__")
        )
        or (isinstance(node, ast.Attribute) and node.attr == relation)
    ]


def reads_across_tenants(source: Source) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "across_tenants" for n in ast.walk(source.tree))


def has_sql_on(source: Source, tables: set[str]) -> bool:
    names = "|".join(sorted(tables))
    pattern = re.compile(
        rf"\b(?:SELECT|INSERT|UPDATE|DELETE)\b.*?\b(?:FROM|JOIN|INTO|UPDATE)\s+[\"`]?(?:{names})\b", re.DOTALL
    )
    return any(
        pattern.search(text) or re.match(rf"\s*UPDATE (?:{names})\b", text)
        for _, text in find_sql_texts(source)
    )


# --- databases ------------------------------------------------------------------------------------------------


def find_vendor_branches(source: Source) -> list[str]:
    """Return places that ask which database this is: `.vendor`, and Django's `as_<vendor>` methods of expressions."""
    return [
        source.complaint(node, "asks which database this is")
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"vendor", "mysql_is_mariadb"})
        or (
            isinstance(node, ast.FunctionDef)
            and re.fullmatch("as_(sqlite|postgresql|mysql|oracle)", node.name)
        )
    ]


# --- time -----------------------------------------------------------------------------------------------------

CLOCKS = {
    ("timezone", "now"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
    ("time", "time"), ("time", "time_ns"), ("timezone", "localtime"), ("timezone", "localdate"),
}  # fmt: skip
CLOCK_IMPORTS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("django.utils.timezone", "now"),
    ("django.db.models.functions", "Now"),
}


def find_clocks(source: Source) -> list[str]:
    """Return reads of a clock other than the database's, or of the database's without the transaction's time."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and tuple(get_name_chain(node)[-2:]) in CLOCKS:
            found.append(source.complaint(node, ".".join(get_name_chain(node))))
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "", alias.name) for alias in node.names} & CLOCK_IMPORTS
            found += [source.complaint(node, f"imports {module}.{name}") for module, name in sorted(names)]
        elif isinstance(node, ast.keyword) and node.arg in {"auto_now", "auto_now_add"}:
            found.append(source.complaint(node.value, node.arg))
    return found
