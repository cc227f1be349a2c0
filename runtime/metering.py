"""Put a meter at every place of a template's tree where jinja2 itself offers none."""

from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.visitor import NodeTransformer

MOST_NODES = 10_000  # the largest templates of known models have 3,000

_FORBIDDEN = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.EvalContextModifier,
)


def metered(tree: nodes.Template) -> nodes.Template:
    """Change the tree so that its loops, texts, lists and comparisons call the sandbox's meters.

    Raises TemplateError for a tree that is far too large for a chat template, or that asks for
    other files or for the escaping of HTML.
    """
    if any(place > MOST_NODES for place, _ in enumerate(tree.find_all(nodes.Node))):
        raise TemplateError(f"it has more than {MOST_NODES:,} parts")
    _Meters().visit(tree)
    return tree


class _Meters(NodeTransformer):
    """The names of the filters are those that `runtime.sandbox` gives to its meters."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 names it so
        self.generic_visit(node)
        node.iter = _through("_counted", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # Its texts, TemplateData, have become constants by now.
        node.nodes = [_through("_read", child) for child in node.nodes]
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:  # noqa: N802
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_concatenated", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through("_compared", node.expr)
        for operand in node.ops:
            operand.expr = _through("_compared", operand.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_held", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _through("_read", pair.key)
        return _through("_held", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_held", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_held", node) if isinstance(node.arg, nodes.Slice) else node

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if isinstance(node, _FORBIDDEN):
            raise TemplateError(f"it may not use {type(node).__name__.lower()}")
        return super().generic_visit(node, *args, **kwargs)


def _through(meter: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, meter, [], [], None, None, lineno=node.lineno)
