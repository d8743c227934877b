"""Reads and edits YAML text, and leaves every character alone that it was not asked to change.

A config is its user's text: comments, order, quotes, anchors and ``${...}`` would be lost if it
were loaded and written again. PyYAML tells where things stand; the edits are made in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ecorl.errors import ConfigError

Part = str | int
Name = str | Path | None

_BREAK = re.compile(r"\r\n|\r|\n")

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
"""Text that needs no quotes anywhere, unless YAML takes it for something else, such as ``yes``."""

_BLOCK_HEADER = re.compile(r"[|>]([-+0-9]*)([^\r\n]*)")
"""First line of a text below ``|`` or ``>``, with the comment that may follow."""

_TIMESTAMP = "tag:yaml.org,2002:timestamp"

_NO_YAML = (yaml.YAMLError, RecursionError, ValueError, OverflowError, LookupError, AttributeError)
"""PyYAML lets the last four through, for a broken escape or a tag that does not fit its value."""


# ---------------------------------------------------------------- what the text says


def load(text: str, name: Name = None) -> Any:
    """Load YAML as plain data; a date is text, as for OmegaConf.

    Args:
        text: one document.
        name: where it comes from, for the errors.

    Raises:
        ConfigError: when it is no valid YAML.
    """
    loader = yaml.SafeLoader
    resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != _TIMESTAMP]
        for first, known in loader.yaml_implicit_resolvers.items()
    }
    loader = type("Loader", (loader,), {"yaml_implicit_resolvers": resolvers})
    try:
        return yaml.load(text, Loader=loader)
    except _NO_YAML as error:
        raise _syntax_error(error, text, name) from error


def line_of(text: str, parts: Sequence[Part], name: Name = None) -> int | None:
    """Find the 1-based line of a key, or of the innermost mapping around it that exists.

    Args:
        text: YAML.
        parts: the key, part by part; whole numbers are places in a list, from 0.
        name: where it comes from, for the errors.

    Returns:
        The line; None when nothing of it stands there.

    Raises:
        ConfigError: when the text is no valid YAML.
    """
    node, line = _read(text, name).root, None
    for part in parts:
        found = _child(node, part)
        if found is None:
            break
        key, node = found
        line = _line(text, key.start)
    return line


def scalar_at(text: str, parts: Sequence[Part], name: Name = None) -> str | None:
    """Look up a single value, as it is written, without quotes.

    Args:
        text: YAML.
        parts: its key, as for `line_of`.
        name: where it comes from, for the errors.

    Returns:
        The value; None where no single value stands.

    Raises:
        ConfigError: when the text is no valid YAML.
    """
    node = _read(text, name).root
    for part in parts:
        found = _child(node, part)
        if found is None:
            return None
        node = found[1]
    return node.seen.value if node is not None and node.seen.kind == _VALUE else None


# ---------------------------------------------------------------- edits


def with_value(text: str, parts: Sequence[Part], value: str, name: Name = None) -> str:
    """Replace a single value where it stands, or add its key to the mapping around it.

    An alias is replaced by the value, and what it refers to stays. A value that has an anchor, or
    stands in a mapping that has one, changes for all that refer to it.

    Args:
        text: YAML.
        parts: its key, as for `line_of`; the mapping or list around it must exist.
        value: the new text, which reads back as this text: it is quoted where it would otherwise
            be a number or the like.
        name: where the text comes from, for the errors.

    Raises:
        ConfigError: when the text is no valid YAML, when there is no place for the key, or when
            a mapping or a list stands there.
    """
    document = _read(text, name)
    node, parent = document.root, None
    for i, part in enumerate(parts):
        is_last = i + 1 == len(parts)
        # What a merge key brings can be overridden beside it, without a change to its source.
        found = _child(node, part, merged=not is_last)
        if found is None and is_last and node is not None and node.seen.kind == _MAPPING:
            return _with_key(document, node.seen, parts, value)
        if found is None:
            raise document.refusal(parts, None, "a key of a mapping that stands in the file")
        parent, (key, node) = node, found
    if node is None or parent is None or node.seen.kind != _VALUE:
        kind = node.seen.kind if node is not None else None
        raise document.refusal(parts, kind, "a single value")
    if node.target is not None:
        return text[: node.start] + _written(value) + text[node.end :]
    if node.is_absent:
        if not parent.seen.is_flow:
            raise document.refusal(parts, None, "a key with a colon after it")
        return f"{text[: key.end]}: {_written(value)}{text[key.end :]}"
    return _replaced(document, node, value)


def with_block(text: str, block: str, name: Name = None) -> str:
    """Append a block of keys to the mapping that the whole text is.

    Args:
        text: YAML; nothing but comments counts as a mapping without keys.
        block: the lines to append; they are given the indentation and line ends of the text.
        name: where the text comes from, for the errors.

    Raises:
        ConfigError: when the text is no valid YAML, or nothing can be appended to it.
    """
    document = _read(text, name)
    ended = document.with_line_end()
    if ended is not None:
        return with_block(ended, block, name)
    root, indentation = document.root, ""
    # `---` alone is an empty value.
    if root is not None and root.end > root.start:
        if root.kind != _MAPPING or root.is_flow:
            first = text[root.start :].split("\n", 1)[0].strip()
            allowed = "a mapping with its keys on lines of their own, without braces around them"
            raise ConfigError("(top level)", first, allowed, name, _line(text, root.start))
        indentation = " " * document.column(root)
    # Spaces after the last line end would become a line of what stands before them.
    end = len(text.rstrip(" ")) if _ends_line(text.rstrip(" ")) else len(text)
    for token in document.tokens:
        if isinstance(token, yaml.DocumentEndToken):
            end = min(end, token.start_mark.index)
    head, tail, newline = text[:end], text[end:], document.newline
    last, keeps_blank_lines = document.last_value(), False
    if last is not None and last.style in ("|", ">") and last.end_mark.index >= end:
        header = _BLOCK_HEADER.match(text, last.start_mark.index)
        keeps_blank_lines = header is not None and "+" in header[1]
    if head and not _ends_line(head):
        head += newline
    if head and _BREAK.split(head)[-2].strip() and not keeps_blank_lines:
        head += newline
    lines = [indentation + line if line.strip() else "" for line in block.strip("\n").split("\n")]
    return head + "".join(f"{line}{newline}" for line in lines) + tail


def _with_key(document: _Document, mapping: _Node, parts: Sequence[Part], value: str) -> str:
    """Add a key at the end of a mapping."""
    text = document.text
    entry = f"{_written(str(parts[-1]))}: {_written(value)}"
    if mapping.is_flow:
        if text[mapping.end - 1] != "}":
            raise document.refusal(parts, None, "a key of a mapping in braces")
        if not mapping.pairs:
            return f"{text[: mapping.end - 1]}{entry}{text[mapping.end - 1 :]}"
        end = mapping.pairs[-1][1].end
        return f"{text[:end]}, {entry}{text[end:]}"
    entry = " " * document.column(mapping) + entry
    end = mapping.end
    if document.is_block_text_at(end):
        ended = document.with_line_end()
        if ended is not None:
            return with_value(ended, parts, value, document.name)
        return f"{text[:end]}{entry}{document.newline}{text[end:]}"
    found = _BREAK.search(text, end)
    if found is None:
        return f"{text}{document.newline}{entry}"
    return f"{text[: found.start()]}{document.newline}{entry}{text[found.start() :]}"


def _replaced(document: _Document, node: _Node, value: str) -> str:
    """Replace a value; its anchor stays, while a tag would read the new text as something else."""
    text = document.text
    inside = [t for t in document.tokens if node.start <= t.start_mark.index < node.end]
    spans = [(t.start_mark.index, t.end_mark.index) for t in inside if isinstance(t, yaml.TagToken)]
    token = next((t for t in inside if isinstance(t, yaml.ScalarToken)), None)
    new = _written(value, node.style)
    if token is not None:
        start, end = token.start_mark.index, token.end_mark.index
        edits = [(start, end, new + _after_block_text(text[start:end], node.style))]
    elif spans:
        edits = [(*spans.pop(), new)]
    else:
        edits = [(node.end, node.end, f" {new}")]
    for start, end in spans:
        while text[end] == " ":
            end += 1
        edits.append((start, end, ""))
    for start, end, put in sorted(edits, reverse=True):
        text = text[:start] + put + text[end:]
    return text


def _after_block_text(old: str, style: str | None) -> str:
    """Of a text below ``|`` or ``>``: the comment on its first line, and the line ends after it."""
    if style not in ("|", ">"):
        return ""
    header = _BLOCK_HEADER.match(old)
    rest = old[len(old.rstrip()) :]
    found = _BREAK.search(rest)
    return (header[2].rstrip() if header else "") + (rest[found.start() :] if found else "")


def _written(value: str, style: str | None = None) -> str:
    """Write text as YAML on one line, in the quotes of what it replaces."""
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if style not in ('"', "'") and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    quoted: str = yaml.safe_dump(value, default_style='"', width=float("inf"), allow_unicode=True)
    return quoted.rstrip("\n")


# ---------------------------------------------------------------- where things stand

_VALUE, _MAPPING, _LIST, _END = "a value", "a mapping", "a list", "an end"


@dataclass(slots=True, eq=False)
class _Node:
    """A value, mapping or list, or an alias of one, with the place of its text.

    Attributes:
        start: where it begins, with its anchor and tag.
        end: where it ends; of a block mapping or list, where the last thing in it does.
        kind: for words.
        style: the quotes, or ``|`` or ``>``, of a value.
        is_flow: whether it stands in braces or brackets of its own.
        is_absent: whether not even a colon stands where it is.
        target: what an alias refers to.
    """

    start: int
    end: int
    kind: str
    value: str = ""
    style: str | None = None
    is_flow: bool = False
    is_absent: bool = False
    target: _Node | None = None
    pairs: list[tuple[_Node, _Node]] = field(default_factory=list)
    items: list[_Node] = field(default_factory=list)

    @property
    def seen(self) -> _Node:
        """The node itself, or what it refers to."""
        return self.target or self


@dataclass(frozen=True, slots=True)
class _Document:
    """A text with what PyYAML found in it."""

    text: str
    name: Name
    root: _Node | None
    tokens: list[Any]

    @property
    def newline(self) -> str:
        """The end of a line, as this text has it."""
        return "\r\n" if "\r\n" in self.text else "\n"

    def column(self, mapping: _Node) -> int:
        """The column of the keys of a block mapping; a ``?`` before them counts as theirs."""
        keys = [t.start_mark for t in self.tokens if isinstance(t, yaml.KeyToken)]
        place = bisect_right([mark.index for mark in keys], mapping.pairs[0][0].start)
        return int(keys[place - 1].column)

    def last_value(self) -> Any:
        """The token of the value that stands last; None where something else does."""
        layout = yaml.StreamEndToken | yaml.DocumentEndToken | yaml.BlockEndToken
        last = next((t for t in reversed(self.tokens) if not isinstance(t, layout)), None)
        return last if isinstance(last, yaml.ScalarToken) else None

    def is_block_text_at(self, end: int) -> bool:
        """Tell whether a text below ``|`` or ``>`` ends there."""
        return any(
            isinstance(t, yaml.ScalarToken) and t.style in ("|", ">") and t.end_mark.index == end
            for t in self.tokens
        )

    def with_line_end(self) -> str | None:
        """End the last line of a text below ``|`` or ``>``; ``|-`` keeps that out of the text.

        Returns:
            The new text; None where no such text ends without a line end.
        """
        last = self.last_value()
        if last is None or last.style not in ("|", ">") or _ends_line(self.text):
            return None
        header = _BLOCK_HEADER.match(self.text, last.start_mark.index)
        if header is None or last.end_mark.index < len(self.text):
            return None
        before, after = self.text[: header.start(1)], self.text[header.end(1) :]
        return before + header[1].strip("+-") + "-" + after + self.newline

    def refusal(self, parts: Sequence[Part], value: object, allowed: str) -> ConfigError:
        """Make the error for a key that cannot be set."""
        line = line_of(self.text, parts)
        return ConfigError(".".join(map(str, parts)), value, allowed, self.name, line)


def _read(text: str, name: Name) -> _Document:
    try:
        # It refuses what the events alone would let pass, such as a second document.
        yaml.compose(text, Loader=yaml.SafeLoader)
        tokens = list(yaml.scan(text, Loader=yaml.SafeLoader))
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        opened = {
            t.end_mark.index
            for t in tokens
            if isinstance(t, yaml.ValueToken | yaml.BlockEntryToken)
        }
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                return _Document(text, name, _composed(events, {}, opened), tokens)
    except _NO_YAML as error:
        raise _syntax_error(error, text, name) from error
    return _Document(text, name, None, tokens)


def _composed(events: Iterator[Any], anchors: dict[str, _Node], opened: set[int]) -> _Node:
    """Compose the next node of the events, or what ends the mapping or list around it."""
    event = next(events)
    start, end = event.start_mark.index, event.end_mark.index
    make = partial(_composed, events, anchors, opened)
    if isinstance(event, yaml.AliasEvent):
        target = anchors[event.anchor]
        return _Node(start, end, target.kind, target=target)
    if isinstance(event, yaml.ScalarEvent):
        node = _Node(start, end, _VALUE, event.value, event.style)
        node.is_absent = start == end and start not in opened
    elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
        kind = _MAPPING if isinstance(event, yaml.MappingStartEvent) else _LIST
        node = _Node(start, end, kind, is_flow=bool(event.flow_style))
    else:
        return _Node(start, end, _END)
    if event.anchor is not None:
        anchors[event.anchor] = node
    if node.kind == _VALUE:
        return node
    while (child := make()).kind != _END:
        last = child
        if node.kind == _LIST:
            node.items.append(child)
        else:
            last = make()
            if last.is_absent:
                last.start = last.end = child.end
            node.pairs.append((child, last))
        node.end = last.end
    if node.is_flow:
        node.end = child.end
    return node


def _child(
    node: _Node | None, part: Part, merged: bool = True, above: tuple[_Node, ...] = ()
) -> tuple[_Node, _Node] | None:
    """Look up the key and the value of a part; of the same key given twice, the last one counts.

    Args:
        node: the mapping or list.
        part: the key, or the place in a list.
        merged: whether to look into what a merge key brings as well.
        above: what is being looked into, since a mapping may claim to merge itself.
    """
    if node is None or node.seen in above:
        return None
    node = node.seen
    if node.kind == _LIST and isinstance(part, int) and 0 <= part < len(node.items):
        return node.items[part], node.items[part]
    for key, value in reversed(node.pairs):
        if key.seen.kind == _VALUE and key.seen.value == str(part):
            return key, value
    for key, value in reversed(node.pairs) if merged else ():
        if key.value != "<<" or key.style is not None:
            continue
        for source in value.seen.items or [value]:
            found = _child(source, part, above=(*above, node))
            if found is not None:
                return found
    return None


def _line(text: str, index: int) -> int:
    return 1 + sum(1 for _ in _BREAK.finditer(text, 0, index))


def _ends_line(text: str) -> bool:
    return text.endswith(("\n", "\r"))


def _syntax_error(error: Exception, text: str, name: Name) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    index = mark.index if mark is not None else getattr(error, "position", len(text))
    lines = _BREAK.split(text.rstrip())
    line = min(_line(text, index), len(lines))
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    reason = "it is nested too deep" if isinstance(error, RecursionError) else problem or str(error)
    return ConfigError("(syntax)", lines[line - 1].strip(), f"valid YAML ({reason})", name, line)
