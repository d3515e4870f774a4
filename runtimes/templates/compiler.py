"""Python code of a template that counts its steps, and asks the sandbox before it makes anything.

Jinja2's own code makes texts, lists and comparisons directly; here they are calls of the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators

_REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
_LISTS = (nodes.List, nodes.Tuple, nodes.Dict)
_ELEMENT = 2  # characters that a place in a list counts for
_QUICK = frozenset({"eq", "ne", "lt", "lteq", "gt", "gteq"})


class CountingGenerator(CodeGenerator):
    """Used by `runtimes.templates.sandbox.Sandbox` alone."""

    _repeated: Mapping[int, int] = {}  # bodies by their ids, and how much text stands in them

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Find what may be repeated."""
        parts: dict[int, list[nodes.Node]] = {
            id(one.body): [*one.body, *getattr(one, "defaults", ())]  # type: ignore[attr-defined]
            for one in node.find_all(_REPEATED)
        }
        self._repeated = {body: sum(_characters(one) for one in parts[body]) for body in parts}
        super().visit_Template(node, frame)

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Count a step where it may be repeated."""
        if id(nodes) in self._repeated:
            self.writeline(f"environment.tick({self._repeated[id(nodes)]})")
        super().blockvisit(nodes, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Count the values that its test is asked for, too."""
        if node.test is not None:
            counted = nodes.EnvironmentAttribute("counted", lineno=node.lineno)
            node.iter = nodes.Call(counted, [node.iter], [], None, None, lineno=node.lineno)
            node.set_environment(self.environment)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """``a ~ b``."""
        self._call("joined", frame, *node.nodes)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        """``a + b``."""
        self._call("added", frame, node.left, node.right)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """``a == b in c``."""
        sides = [node.expr, *(one.expr for one in node.ops)]
        quick = len(sides) == 2 and node.ops[0].op in _QUICK
        if quick and any(isinstance(one, nodes.Const) for one in sides):
            super().visit_Compare(node, frame)  # nothing is large beside what is written out
            return
        self.write("(")
        self._whole(node.expr, frame)
        for one in node.ops:
            self.write(f" {operators[one.op]} ")
            self._whole(one.expr, frame)
        self.write(")")

    def _whole(self, node: nodes.Expr, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
        else:
            self._call("whole", frame, node)

    def _call(self, method: str, frame: Frame, *arguments: nodes.Node | None) -> None:
        """A call of the sandbox."""
        self.write(f"environment.{method}(")
        for one in arguments:
            if one is None:
                self.write("None")
            else:
                self.visit(one, frame)
            self.write(", ")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """``a[b]``, ``a[1:2]``."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self._call("part", frame, node.node, node.arg.start, node.arg.stop, node.arg.step)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """``{a: b}``, whose keys are hashed."""
        self.write("{")
        for item in node.items:
            self._whole(item.key, frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Frame) -> None:
        """``{% autoescape %}``, with which texts would be of another kind."""
        self.fail("autoescape is not supported", node.lineno)


def _characters(node: nodes.Node) -> int:
    """Count the text and the lists of a node, without those within loops and macros, which count by
    themselves."""
    if isinstance(node, nodes.TemplateData):
        return len(node.data)
    own = _ELEMENT * len(node.items) if isinstance(node, _LISTS) else 0
    elsewhere = ("body", "defaults") if isinstance(node, _REPEATED) else ()
    return own + sum(map(_characters, node.iter_child_nodes(elsewhere)))
