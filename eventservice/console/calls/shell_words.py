"""The words of a command line, as bash reads it: what browsers copy has quotes that POSIX, and shlex, do not know."""

from __future__ import annotations

import re
import shlex

# What stands in the way of shlex: line continuations, and quotes as bash has them and POSIX has not.
_PIECES = re.compile(
    r"(?P<joined>\\\r?\n)"
    r"|(?P<ansi>\$'(?:\\.|[^'\\])*')"
    r"|(?P<single>'[^']*')"
    r'|(?P<double>\$?"(?:\\.|[^"\\])*")'
    r"|(?P<escaped>\\.)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"(?<!\\)(?:\$[A-Za-z_{(]|`)")
_ANSI = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ANSI_LETTERS = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip


def words_of(text: str) -> list[str]:
    """Nothing is carried out and no variable replaced; raises ValueError where a quote is not closed."""
    return shlex.split(_PIECES.sub(_plain, text))


def has_variables(text: str) -> bool:
    """Or commands, where a shell would replace them: not in single quotes, and not after a backslash."""
    return bool(_VARIABLE.search(_PIECES.sub(lambda piece: piece["double"] or " ", text)))


def is_for_windows(text: str) -> bool:
    """Whether cmd is to read it, which escapes by a caret: bash has none outside its quotes."""
    return bool(re.search(r"\^(?:\s|$)|\^%\^", _PIECES.sub("", text)))


def _plain(piece: re.Match[str]) -> str:
    match piece.lastgroup:
        case "joined":
            return " "
        case "ansi":
            return shlex.quote(_ansi(piece[0][2:-1]))
        case "double":
            return re.sub(r"\\(\r?\n|.)", _in_double_quotes, piece[0].removeprefix("$"))
        case _:
            return piece[0]


def _in_double_quotes(escape: re.Match[str]) -> str:
    """shlex knows two of bash's escapes there."""
    escaped = escape[1]
    if escaped in "$`":
        return escaped
    return "" if escaped.endswith("\n") else escape[0]


def _ansi(text: str) -> str:
    """$'…': what a browser uses where a text has quotes or line breaks."""
    # \x and octal escapes are bytes, so that two of them may be one letter.
    made = bytearray()
    end = 0
    for escape in _ANSI.finditer(text):
        made += text[end : escape.start()].encode()
        made += _ansi_bytes(escape)
        end = escape.end()
    return (bytes(made) + text[end:].encode()).decode(errors="replace")


def _ansi_bytes(escape: re.Match[str]) -> bytes:
    byte, short, long, octal, control, letter = escape.groups()
    if byte or octal:
        return bytes([int(byte, 16) if byte else int(octal, 8) & 0xFF])
    if short or long:
        number = int(short or long, 16)
        return (chr(number) if number < 0x110000 else "\ufffd").encode(errors="replace")
    if control:
        return bytes([ord(control.upper()) & 0x1F])
    return _ANSI_LETTERS.get(letter, letter if letter in "\\'\"?" else "\\" + letter).encode()
