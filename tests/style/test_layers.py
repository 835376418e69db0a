"""Layers of the client: what comes between a handle and a connection knows no verb.

A layer goes by what a command holds or declares, so that a new verb needs no line of it.
"""

import ast

import pytest

from embstore.commands import COMMANDS
from tests.style.sources import ROOT, parse

CLIENT = ROOT / "client" / "embstore_client"
LAYERS = {
    "call.py": set(),
    "members.py": set(),
    "known_tables.py": {"GetTable"},  # what it asks
    "sending.py": set(),
    "device_calls.py": set(),
    "step_rows.py": set(),
    "shares.py": set(),
    "narrow_shares.py": set(),
}
"""By file, the commands that may be named there: those that it makes itself."""


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_names_a_verb(name):
    tree = parse(CLIENT / name)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert names & COMMANDS.keys() == LAYERS[name]


def test_every_layer_of_the_chain_is_looked_at():
    tree = parse(CLIENT / "executor.py")
    (chain,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.value, ast.List)
    ]
    made = {
        node.func.id
        for node in ast.walk(chain)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    classes = {
        node.name
        for name in LAYERS
        for node in parse(CLIENT / name).body
        if isinstance(node, ast.ClassDef)
    }
    assert made <= classes | {"Members"}
    assert {"KnownIds", "Sized", "OnDevice", "EarlyRows", "Unique", "Narrow"} <= made
