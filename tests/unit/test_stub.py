"""Holds rdmatx/_C.pyi to the extension: every public name both ways, with its kind and its parameters'
names."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rdmatx import _C
from tests.launch import ROOT

STUB = ast.parse((ROOT / "rdmatx" / "_C.pyi").read_text())
# Special methods that users call through syntax, so that a stub has to tell them. (__buffer__ is one too,
# but an attribute only from Python 3.12 on.)
SPECIAL = {
    "__array_interface__",
    "__await__",
    "__bytes__",
    "__dlpack__",
    "__dlpack_device__",
    "__enter__",
    "__exit__",
    "__iter__",
    "__len__",
    "__next__",
}
# What every class or enumeration has, or what a stub may declare of object's own.
INHERITED = {"__eq__", "__hash__", "__init__", "__repr__", "__str__"}


def public(name: str) -> bool:
    return not name.startswith("_") or name in SPECIAL


def stub_of(path: list[str]) -> list[ast.stmt]:
    """The body of a class of the stub, what its bases declare included."""
    body, scope = STUB.body, STUB.body
    for part in path:
        node = next(node for node in scope if isinstance(node, ast.ClassDef) and node.name == part)
        body = [*node.body]
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes_of(STUB.body):
                body += stub_of([base.id])
        scope = node.body
    return body


def classes_of(body: list[ast.stmt]) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def members_of(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Every name a body declares, with its declaration."""
    members: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            members.setdefault(node.name, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members.setdefault(node.target.id, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            members.setdefault(node.targets[0].id, node)
    return members


def declared_parameters(node: ast.FunctionDef) -> list[str]:
    """The names of a declaration, without self: "*" where keyword-only ones begin, "=" after one with a
    default, "arg0", "arg1", … for those that may only be given by position."""
    arguments = node.args
    by_name = [*arguments.posonlyargs, *arguments.args]
    defaults = len(by_name) - len(arguments.defaults)
    names = [argument.arg + "=" * (at >= defaults) for at, argument in enumerate(by_name)]
    by_position = len(arguments.posonlyargs)
    if names and names[0] in ("self", "cls"):
        names.pop(0)
        by_position = max(0, by_position - 1)
    names[:by_position] = [
        f"arg{at}" + "=" * name.endswith("=") for at, name in enumerate(names[:by_position])
    ]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(argument.arg + "=" * (default is not None))
    if arguments.kwarg:
        names.append("**" + arguments.kwarg.arg)
    return names


def actual_parameters(function: Callable[..., Any]) -> list[str]:
    """The same of the extension. Its methods that CPython calls directly have their signature in their
    docstring, where inspect finds it; the others tell theirs to whoever calls with an argument it does not
    have."""
    if getattr(function, "__text_signature__", None) and not inspect.isclass(function):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        return [
            parameter.name + "=" * (parameter.default is not parameter.empty)
            for parameter in parameters
        ]
    with pytest.raises(TypeError) as caught:
        function(**{"no such parameter": None})
    signature = re.search(r"^    1\. [\w.]*\((.*)\)(?: -> .*)?$", str(caught.value), re.MULTILINE)
    if signature is None:
        return ["(no constructor)"]
    names = []
    for part in split_at_commas(signature.group(1)):
        if name := re.match(r"\*{0,2}\w*", part.strip()).group():  # type: ignore[union-attr]
            names.append(name + "=" * (" = " in part))
    if names and names[0] == "self":
        names.pop(0)
    return names


def split_at_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>" and text[at - 1] != "-")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def is_property(node: ast.stmt) -> bool:
    if isinstance(node, (ast.AnnAssign, ast.Assign)):
        return True
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(item, ast.Name) and item.id == "property" for item in decorators)


def extension_classes(module: ModuleType) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if public(name) and inspect.isclass(value)
    }


ENUMERATIONS = sorted(n for n, kind in extension_classes(_C).items() if issubclass(kind, enum.Enum))
# Those that only one of the two has are test_module_names' to tell.
CLASSES = sorted((set(extension_classes(_C)) & set(classes_of(STUB.body))) - set(ENUMERATIONS))


def test_module_names() -> None:
    """Every public name of the extension is in the stub, and the other way round."""
    declared = {name for name in members_of(STUB.body) if public(name)}
    actual = {name for name in vars(_C) if public(name)}
    assert actual == declared


def test_functions() -> None:
    for name, node in members_of(STUB.body).items():
        if isinstance(node, ast.FunctionDef) and public(name):
            assert actual_parameters(getattr(_C, name)) == declared_parameters(node), name


@pytest.mark.parametrize("name", CLASSES)
def test_class_members(name: str) -> None:
    kind = getattr(_C, name)
    declared = {member for member in members_of(stub_of([name])) if public(member)}
    actual = {
        member
        for base in kind.__mro__
        if base is not object
        for member in vars(base)
        if public(member) and base.__module__ != "pybind11_builtins"
    }
    assert actual == declared


@pytest.mark.parametrize("name", CLASSES)
def test_class_signatures(name: str) -> None:
    kind = getattr(_C, name)
    for member, node in members_of(stub_of([name])).items():
        actual = inspect.getattr_static(kind, member, None)
        if isinstance(node, ast.ClassDef) or (not public(member) and member != "__init__"):
            continue
        assert is_property(node) == isinstance(actual, property), f"{name}.{member}"
        if is_property(node) or (member.startswith("__") and member != "__init__"):
            continue  # special methods are called by the interpreter, by position
        assert isinstance(node, ast.FunctionDef)
        found = actual_parameters(kind if member == "__init__" else getattr(kind, member))
        assert found == declared_parameters(node), f"{name}.{member}"


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumeration(name: str) -> None:
    """The members of an enumeration have the values that the stub writes down."""
    kind = getattr(_C, name)
    declared = {
        target.id: ast.literal_eval(node.value)
        for node in stub_of([name])
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert {member: int(value) for member, value in kind.__members__.items()} == declared


def test_everything_has_a_docstring_where_users_meet_it() -> None:
    """The classes that rdmatx and rdmatx.verbs hand out say what they are."""
    import rdmatx
    import rdmatx.verbs

    for module in (rdmatx, rdmatx.verbs):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                assert (value.__doc__ or "").strip(), f"{module.__name__}.{name}"
