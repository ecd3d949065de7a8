"""The text form of programs, such as `Map(rotr 1, Merge(8: Lit huffman(max=11, streams=5), 8: Lit raw))`.

A node is its name and what it holds: `Lit raw`, `Const 0x3f80`, `Concat(3000: Const 0, 96: Lit raw)`,
`Repeat(12, Lit raw)`, `Scan(add, Const 1)`, `Palette(0, 0x3c00: Lit raw)`, `Select(0, Lit raw, Lit zstd)`
(the word, the mask, the child). Numbers are decimal or hexadecimal; blanks and line ends may
stand between any two tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from brevisfs.dsl._check import Budget, ProgramError
from brevisfs.dsl._program import (
    Add,
    BitReverse,
    Coded,
    Concat,
    Const,
    Encoding,
    Function,
    Gray,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Pack,
    Palette,
    Rans,
    Raw,
    Repeat,
    RotR,
    Scan,
    Select,
    Sparse,
    Transpose,
    Tunstall,
    Xor,
    ZigZag,
    Zstd,
)


def to_text(node: Node) -> str:
    """The text form, in one line."""
    match node:
        case Lit(encoding):
            return f"Lit {_encoding_text(encoding)}"
        case Const(word):
            return f"Const {_word(word)}"
        case Concat(sizes, parts) | Merge(sizes, parts):
            fields = [f"{size}: {to_text(part)}" for size, part in zip(sizes, parts, strict=True)]
            return f"{type(node).__name__}({', '.join(fields)})"
        case Repeat(times, child):
            return f"Repeat({times}, {to_text(child)})"
        case Map(function, child):
            return f"Map({_function_text(function)}, {to_text(child)})"
        case Scan(kind, child):
            return f"Scan({kind}, {to_text(child)})"
        case Transpose(columns, child):
            return f"Transpose({columns}, {to_text(child)})"
        case Palette(words, child):
            return f"Palette({', '.join(map(_word, words))}: {to_text(child)})"
        case Select(word, mask, child):
            return f"Select({_word(word)}, {to_text(mask)}, {to_text(child)})"


def _word(word: int) -> str:
    return str(word) if word < 10 else f"{word:#x}"


def _encoding_text(encoding: Encoding) -> str:
    match encoding:
        case Raw():
            return "raw"
        case Zstd():
            return "zstd"
        case Pack(bits, base):
            return f"pack({bits}, base={_word(base)})"
        case Sparse(base):
            return f"sparse(base={_word(base)})"
        case Huffman(streams, max_length):
            return f"huffman(max={max_length}, streams={streams}{_tables_text(encoding)})"
        case Rans(lanes, prob_bits):
            return f"rans(lanes={lanes}, prob={prob_bits}{_tables_text(encoding)})"
        case Tunstall(bits, prob_bits):
            return f"tunstall(bits={bits}, prob={prob_bits}{_tables_text(encoding)})"


def _tables_text(encoding: Coded) -> str:
    several = f", tables={encoding.tables}, segment={encoding.segment}" if encoding.tables > 1 else ""
    paired = f", rows={encoding.rows}, columns={encoding.columns}" if encoding.columns else ""
    return several + paired


def _function_text(function: Function) -> str:
    match function:
        case Xor(word):
            return f"xor {_word(word)}"
        case Add(word):
            return f"add {_word(word)}"
        case ZigZag():
            return "zigzag"
        case Gray():
            return "gray"
        case BitReverse():
            return "bitrev"
        case RotR(places):
            return f"rotr {places}"


def parse_text(text: str) -> Node:
    """The program a text form says, of no particular type yet; raises ProgramError."""
    parser = _Parser(text)
    node = parser.node("root", 0)
    parser.expect("")
    return node


class _Parser:
    """Recursive descent over tokens; the end of the text is the token ''."""

    _TOKEN = re.compile(r"\s*(0x[0-9a-fA-F]+|[0-9]+|[A-Za-z]+|[(),:=]|\Z|.)", re.DOTALL)

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._path = "root"
        self._budget = Budget()

    def _peek(self) -> re.Match[str]:
        match = self._TOKEN.match(self._text, self._at)
        assert match is not None  # the last alternative takes any character
        return match

    def _next(self) -> str:
        match = self._peek()
        self._at = match.end()
        return match[1]

    def _fail(self, wanted: str) -> ProgramError:
        match = self._peek()
        found = f"{match[1][:20]!r}" if match[1] else "the end"
        return ProgramError(self._path, f"character {match.start(1) + 1}: {wanted} expected, not {found}")

    def expect(self, token: str) -> None:
        if self._peek()[1] != token:
            raise self._fail(f"{token!r}" if token else "the end")
        self._next()

    def _choice(self, what: str, names: tuple[str, ...]) -> str:
        if self._peek()[1] not in names:
            raise self._fail(f"{what} ({', '.join(names)})")
        return self._next()

    def _number(self) -> int:
        token = self._peek()[1]
        digits = token.isascii() and token[:1].isdecimal() and len(token) <= 20
        if not digits or int(token, 0 if token[1:2] == "x" else 10) >> 64:
            raise self._fail("a number below 2^64")
        return int(self._next(), 0 if token[1:2] == "x" else 10)

    def node(self, path: str, depth: int) -> Node:
        self._path = path
        name = self._choice("an operator", tuple(_OPERATORS))
        self._path = f"{path}.{name.lower()}"
        self._budget.enter(self._path, depth)
        return _OPERATORS[name](self, self._path, depth + 1)

    def lit(self, path: str, depth: int) -> Node:
        return Lit(self._encoding())

    def const(self, path: str, depth: int) -> Node:
        return Const(self._number())

    def concat(self, path: str, depth: int) -> Node:
        return Concat(*self._sized_children(path, depth))

    def merge(self, path: str, depth: int) -> Node:
        return Merge(*self._sized_children(path, depth))

    def repeat(self, path: str, depth: int) -> Node:
        self.expect("(")
        return Repeat(self._number(), self._last_child(path, depth))

    def transpose(self, path: str, depth: int) -> Node:
        self.expect("(")
        return Transpose(self._number(), self._last_child(path, depth))

    def map(self, path: str, depth: int) -> Node:
        self.expect("(")
        return Map(self._function(), self._last_child(path, depth))

    def scan(self, path: str, depth: int) -> Node:
        self.expect("(")
        kind = self._choice("an update", ("xor", "add"))
        return Scan("xor" if kind == "xor" else "add", self._last_child(path, depth))

    def palette(self, path: str, depth: int) -> Node:
        words: list[int] = []
        self.expect("(")
        while self._peek()[1] != ":":
            if words:
                self.expect(",")
            words.append(self._number())
        return Palette(tuple(words), self._last_child(path, depth, ":"))

    def select(self, path: str, depth: int) -> Node:
        self.expect("(")
        word = self._number()
        self.expect(",")
        mask = self.node(f"{path}[0]", depth)
        self._path = path
        return Select(word, mask, self._last_child(path, depth, place="[1]"))

    def _last_child(self, path: str, depth: int, before: str = ",", place: str = "") -> Node:
        self.expect(before)
        child = self.node(path + place, depth)
        self._path = path
        self.expect(")")
        return child

    def _sized_children(self, path: str, depth: int) -> tuple[tuple[int, ...], tuple[Node, ...]]:
        sizes: list[int] = []
        parts: list[Node] = []
        self.expect("(")
        while True:
            sizes.append(self._number())
            self.expect(":")
            parts.append(self.node(f"{path}[{len(parts)}]", depth))
            self._path = path
            if self._peek()[1] != ",":
                break
            self._next()
        self.expect(")")
        return tuple(sizes), tuple(parts)

    def _function(self) -> Function:
        match self._choice("a function", ("xor", "add", "zigzag", "gray", "bitrev", "rotr")):
            case "xor":
                return Xor(self._number())
            case "add":
                return Add(self._number())
            case "zigzag":
                return ZigZag()
            case "gray":
                return Gray()
            case "bitrev":
                return BitReverse()
            case _:
                return RotR(self._number())

    def _encoding(self) -> Encoding:
        match self._choice("an encoding", ("raw", "zstd", "pack", "sparse", "huffman", "rans", "tunstall")):
            case "raw":
                return Raw()
            case "zstd":
                return Zstd()
            case "pack":
                self.expect("(")
                bits = self._number()
                self.expect(",")
                return Pack(bits, self._settings("base")["base"])
            case "sparse":
                self.expect("(")
                return Sparse(self._settings("base")["base"])
            case "huffman":
                self.expect("(")
                return Huffman(*self._coded("streams", "max"))
            case "rans":
                self.expect("(")
                return Rans(*self._coded("lanes", "prob"))
            case _:
                self.expect("(")
                return Tunstall(*self._coded("bits", "prob"))

    def _coded(self, *names: str) -> tuple[int, int, int, int, int, int]:
        """The parameters of a coded literal, of which two have these names."""
        given = self._settings(*names, tables=1, segment=0, rows=0, columns=0)
        first, second = (given[name] for name in names)
        return first, second, given["tables"], given["segment"], given["rows"], given["columns"]

    def _settings(self, *required: str, **optional: int) -> dict[str, int]:
        """`name=number` pairs in any order, and the closing parenthesis."""
        given: dict[str, int] = {}
        missing = (*required, *optional)
        while True:
            name = self._choice("a setting", missing)
            missing = tuple(other for other in missing if other != name)
            self.expect("=")
            given[name] = self._number()
            if self._peek()[1] != ",":
                break
            self._next()
        if absent := [name for name in required if name not in given]:
            raise self._fail(f"{absent[0]}=")
        self.expect(")")
        return optional | given


_OPERATORS: dict[str, Callable[[_Parser, str, int], Node]] = {
    "Lit": _Parser.lit,
    "Const": _Parser.const,
    "Concat": _Parser.concat,
    "Repeat": _Parser.repeat,
    "Map": _Parser.map,
    "Scan": _Parser.scan,
    "Merge": _Parser.merge,
    "Transpose": _Parser.transpose,
    "Palette": _Parser.palette,
    "Select": _Parser.select,
}
