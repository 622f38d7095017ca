"""Jinja from a file that nobody vouches for: it reaches nothing, ends soon and makes little."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from crucible.errors import CrucibleError
from crucible.model.budget import Budget, Counted

SOURCE = 1 << 17  # characters of a template
_BITS = 4096  # of an integer
_INDENT = 16
_DEPTH = 16  # of loops and macros in one another, as the time to compile them grows with its cube
_BUDGET = "the budget"  # in a context, under a name that no template can write

# What chat templates use. What is left out makes much of little (center, indent, format, lipsum …) or
# chooses at random.
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float int items join last length list lower map "
    "max min reject rejectattr replace reverse safe select selectattr sort string title trim unique upper"
)
_TEXT_METHODS = (
    "capitalize count endswith find index isalnum isalpha isdigit islower isspace isupper join lower lstrip "
    "partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith "
    "strip title upper"
)
_METHODS = {
    str: _TEXT_METHODS.split(),
    dict: ("get", "items", "keys", "values"),
    list: ("count", "index"),
    tuple: ("count", "index"),
}


@pass_context
def _loop(context: Any, items: Any, cost: int) -> Counted:
    return Counted(items, context[_BUDGET], cost)


@pass_context
def _weighed(context: Any, value: Any) -> Any:
    context[_BUDGET].weigh(value)
    return value


@pass_context
def _joined(context: Any, *values: Any) -> str:
    context[_BUDGET].weigh(values)
    return "".join(map(str, values))


@pass_context
def _finalize(context: Any, value: Any) -> Any:
    context[_BUDGET].weigh(value)
    return value


@pass_context
def _tojson(context, value, indent=None, ensure_ascii=False, separators=None, sort_keys=False) -> str:
    """JSON as text for a model, not for HTML."""
    budget = context[_BUDGET]
    budget.weigh(value)
    if indent is not None and not (type(indent) is int and 0 <= indent <= _INDENT):
        raise TemplateRuntimeError(f"tojson indents by 0 to {_INDENT}")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    budget.weigh(text)
    return text


def _filter(name: str) -> Any:
    """Jinja's filter, with its values weighed before and its result after."""
    inner = FILTERS[name]
    wants = getattr(inner, "jinja_pass_arg", None)

    @pass_context
    def weighed(context: Any, value: Any, *args: Any, **options: Any) -> Any:
        budget = context[_BUDGET]
        value = list(value) if name == "join" else value
        budget.weigh((value, args, tuple(options.values())))
        if name in ("replace", "join"):
            _pay_for_growth(budget, value, [*args, *options.values()])
        first = {"context": (context,), "eval_context": (context.eval_ctx,)}
        first["environment"] = (context.environment,)
        result = inner(*first.get(getattr(wants, "name", ""), ()), value, *args, **options)
        budget.weigh(result)
        return result

    return weighed


def _pay_for_growth(budget: Budget, value: Any, texts: Sequence[Any]) -> None:
    """Pay for one of `texts` at every place of `value`, before joining or replacing makes them."""
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    budget.spend(((len(value) if hasattr(value, "__len__") else 0) + 1) * longest)


class _Guard(NodeTransformer):
    """Puts the hooks into a template's tree that no setting of the environment gives."""

    def __init__(self):
        self._depth = 0

    def _deeper(self, node: nodes.Node) -> nodes.Node:
        self._depth += 1
        if self._depth > _DEPTH:
            raise TemplateRuntimeError("it is nested too deeply")
        self.generic_visit(node)
        self._depth -= 1
        return node

    visit_Macro = visit_CallBlock = _deeper

    def _hook(self, name: str, first: nodes.Expr, *rest: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(first, f"{name} ", list(rest), [], None, None, lineno=first.lineno)

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._deeper(node)
        if node.recursive:
            raise TemplateRuntimeError("recursive loops are not covered")
        cost = 1 + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = self._hook("loop", node.iter, nodes.Const(cost))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return self._hook("joined", *node.nodes)

    def _container(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load" or not list(node.iter_child_nodes()):
            return node
        return self._hook("weighed", node)

    visit_List = visit_Tuple = visit_Dict = _container

    def _alone(self, node: nodes.Node) -> None:
        raise TemplateRuntimeError("a chat template stands alone: no include, import, extends or block")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = visit_Block = _alone


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with few filters and methods, where all that grows is paid for."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.filters = {name: _filter(name) for name in _FILTERS.split()} | {"tojson": _tojson}
        self.filters |= {"loop ": _loop, "weighed ": _weighed, "joined ": _joined}
        self.finalize = _finalize

    def wrap_str_format(self, value: Any) -> None:
        """Nothing: texts have no method `format` here."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the base, of a short list."""
        if isinstance(obj, LoopContext | Namespace):
            return super().is_safe_attribute(obj, attr, value)
        return attr in _METHODS.get(type(obj), ())

    def call(self, context: Any, obj: Any, /, *args: Any, **options: Any) -> Any:
        """As the base; the result is paid for."""
        budget = context[_BUDGET]
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            args = (list(args[0]),)
            _pay_for_growth(budget, args[0], [owner])
        budget.weigh((args, tuple(options.values())))
        if isinstance(owner, str) and name == "replace":
            _pay_for_growth(budget, owner, args)
        result = super().call(context, obj, *args, **options)
        budget.weigh(result)
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As the base; refuses what makes much of little."""
        budget = context[_BUDGET]
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"the operator {operator} is not covered here")
        if operator == "*":
            if sum(value.bit_length() for value in (left, right) if isinstance(value, int)) > _BITS:
                raise TemplateRuntimeError(f"an integer of more than {_BITS} bits")
            for value, times in ((left, right), (right, left)):
                if isinstance(value, Sequence) and isinstance(times, int):
                    budget.spend(len(value) * max(times, 0))
        result = super().call_binop(context, operator, left, right)
        budget.weigh(result)
        return result


@functools.cache
def _environment() -> _Environment:
    return _Environment()


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> Template | TemplateError:
    environment = _environment()
    try:
        tree = _Guard().visit(environment.parse(source))
    except TemplateError as error:
        return error
    tree.set_environment(environment)
    return Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def render(source: str, values: Mapping[str, Any], characters: int) -> str:
    """The text that a template makes of `values`; TemplateError where it fails or asks for too much.

    The template sees `values`, range, dict and namespace, and no attribute of a Python object. What it
    makes, walks over or repeats is paid for out of `characters`, so that memory and time are bounded
    whatever it says. Loops, calls, filters, operators and outputs each pay; the tree of the template is
    changed where Jinja has no setting for it.
    """
    if len(source) > SOURCE:
        raise TemplateError(f"it has {len(source)} characters, at most {SOURCE} are read")
    try:
        template = _compiled(source)
        if isinstance(template, TemplateError):
            raise template
        return template.render({**values, _BUDGET: Budget(characters)})
    except RecursionError:
        raise TemplateRuntimeError("it is nested too deeply or calls itself") from None
    except (MemoryError, SyntaxError):  # from Python's own compiler
        raise TemplateRuntimeError("it is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CrucibleError):
            raise
        raise TemplateRuntimeError(str(error) or type(error).__name__) from None
