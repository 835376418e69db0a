"""The error tree drawn in the docstring of embstore.errors is the tree of its classes."""

import inspect
import re

from embstore import errors

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}
DRAWN = re.compile(
    r"^(?P<indent> *)[*+-] (?P<name>\w+)(?: \(also an? (?P<also>\w+)\))?", re.MULTILINE
)


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """Return each drawn class with the names of its bases: parent, then '(also a ...)'."""
    tree: dict[str, tuple[str, ...]] = {}
    path: list[tuple[int, str]] = []
    for match in DRAWN.finditer(errors.__doc__ or ""):
        indent = len(match["indent"])
        path = [(other, name) for other, name in path if other < indent]
        parent = path[-1][1] if path else "Exception"
        tree[match["name"]] = (parent, *filter(None, [match["also"]]))
        path.append((indent, match["name"]))
    return tree


def test_every_class_derives_from_embstore_error():
    strays = [name for name, cls in CLASSES.items() if not issubclass(cls, errors.EmbstoreError)]
    assert not strays


def test_drawn_tree_is_the_tree_of_classes():
    real = {name: tuple(base.__name__ for base in cls.__bases__) for name, cls in CLASSES.items()}
    assert drawn_tree() == real


def test_every_class_has_a_docstring_of_its_own():
    bare = [name for name, cls in CLASSES.items() if not (vars(cls).get("__doc__") or "").strip()]
    assert not bare


def test_every_class_is_called_an_error():
    assert [name for name in CLASSES if not name.endswith("Error")] == []
