"""Counts what imports what: packages, the edges between them, and cycles; of this checkout, or of another in PYTHONPATH.

    python benchmarks/import_graph.py

A package is a folder, or a file of its own, directly below `raydense`. Imports for type checkers alone are left out of cycles.
"""

from __future__ import annotations

import grimp


def cycles(edges: set[tuple[str, str]]) -> list[set[str]]:
    """The groups of modules that import each other in a circle."""
    below: dict[str, set[str]] = {}
    for importer, imported in edges:
        below.setdefault(importer, set()).add(imported)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for module in below.get(ahead.pop(), set()) - seen:
                seen.add(module)
                ahead.append(module)
        return seen

    of = {module: reached(module) for module in below}
    found = [frozenset(other for other in of[module] if module in of.get(other, set())) for module in of if module in of[module]]
    return [set(group) for group in dict.fromkeys(found)]


def edges_of(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    return {(importer, imported) for importer in graph.modules for imported in graph.find_modules_directly_imported_by(importer)}


def main() -> None:
    edges = edges_of(grimp.build_graph("raydense", cache_dir=None))
    run_time = edges_of(grimp.build_graph("raydense", exclude_type_checking_imports=True, cache_dir=None))
    package = {module: module.split(".")[1] for edge in edges for module in edge if "." in module}
    between = {(package[a], package[b]) for a, b in edges if a in package and b in package and package[a] != package[b]}
    names = set(package.values())
    print(f"{len(names)} packages, {len(between)} edges between them; {len(package)} modules, {len(edges)} edges")
    for name, which in (("of packages", between), ("of modules, when they run", run_time), ("of modules, with types", edges)):
        found = cycles(which)
        print(f"cycles {name}: {len(found)}{''.join(f'; {sorted(group)}' for group in found)}")


if __name__ == "__main__":
    main()
