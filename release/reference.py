"""The .proto file as a page: a heading for the service, each message and each enum, and links.

The text of the file is shown unchanged, with its comments, which are written to be read in place.
The page adds facts that the file itself does not show: where a type is declared, and which calls
use it.
"""

import re

_DECLARED = re.compile(
    r"^(service|message|enum) (\w+) \{([^\n]*\}|.*?^\})[^\n]*$", re.MULTILINE | re.DOTALL
)
_CALL = re.compile(r"^  rpc (\w+)\((?:stream )?(\w+)\) returns \((?:stream )?(\w+)\)", re.MULTILINE)


def page(proto: str) -> str:
    """Return the page as Markdown, from the text of the .proto file."""
    declared = {each[2]: each for each in _DECLARED.finditer(proto)}
    users: dict[str, list[str]] = {}
    for call, *types in _CALL.findall(proto):
        for name in types:
            users.setdefault(name, []).append(call)
    head = _comment_above(proto, proto.index("\nsyntax =") + 1)
    parts = ["# embstore.v1", head]
    for name, match in declared.items():
        others = [n for n in declared if n != name and re.search(rf"\b{n}\b", match[3])]
        parts += [f"## {name}", _comment_above(proto, match.start())]
        if name in users:
            parts.append(f"Used by the calls {', '.join(f'`{call}`' for call in users[name])}.")
        if others and match[1] != "service":
            links = ", ".join(f"[{n}](#{n.lower()})" for n in others)
            parts.append(f"Has {links}.")
        parts.append(f"```proto\n{match[0]}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _comment_above(proto: str, end: int) -> str:
    """Return the comment that ends at a position, as prose."""
    lines: list[str] = []
    for line in reversed(proto[:end].rstrip("\n").split("\n")):
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    return "\n".join(reversed(lines))
