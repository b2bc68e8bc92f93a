"""Splitting of a command line into words as bash does it.

Browsers copy commands with ANSI-C quotes ($'…'), which POSIX and therefore shlex do not know. shlex also takes time in
proportion to the square of a word's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = (
    r"(?P<joined>\\\r?\n)"
    r"|(?P<ansi>\$'(?:\\.|[^'\\])*')"
    r"|(?P<single>'[^']*')"
    r'|(?P<double>\$?"(?:\\.|[^"\\])*")'
    r"|(?P<escaped>\\.)"
)
_PIECES = re.compile(_QUOTED, re.DOTALL)
# Every character belongs to exactly one token, so that reading takes time in proportion to the length.
_TOKENS = re.compile(
    rf"{_QUOTED}|(?P<space>[ \t\r\n]+)|(?P<plain>[^ \t\r\n'\"\\$]+|\$)|(?P<unclosed>.)", re.DOTALL
)
_EXPANSION = re.compile(r"(?<!\\)(?:\$[A-Za-z_{(]|`)")
_ANSI = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ESCAPE_IN_DOUBLE_QUOTES = re.compile(r"\\(\r?\n|.)", re.DOTALL)
_ANSI_LETTERS = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip


def split_words(text: str) -> list[str]:
    """Return the words without expanding anything. Raise ValueError if a quote is not closed."""
    return list(_iter_words(text))


def _iter_words(text: str) -> Iterator[str]:
    parts: list[str] = []
    for token in _TOKENS.finditer(text):
        if token.lastgroup not in ("joined", "space"):
            parts.append(_read_token(token))
        elif parts:
            yield "".join(parts)
            parts.clear()
    if parts:
        yield "".join(parts)


def _read_token(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "ansi":
            return _decode_ansi_c(token[0][2:-1])
        case "single":
            return token[0][1:-1]
        case "double":
            return _ESCAPE_IN_DOUBLE_QUOTES.sub(_unescape_in_double_quotes, token[0].removeprefix("$")[1:-1])
        case "escaped":
            return token[0][1:]
        case "plain":
            return token[0]
        case _:
            raise ValueError("a quote is not closed")


def has_expansions(text: str) -> bool:
    """Return whether a shell would expand a variable or a command: outside single quotes and without a backslash."""
    return bool(_EXPANSION.search(_PIECES.sub(lambda piece: piece["double"] or " ", text)))


def is_windows_command(text: str) -> bool:
    """Return whether the line was copied for cmd.exe, which escapes with carets. Bash has none outside quotes."""
    return bool(re.search(r"\^(?:\s|$)|\^%\^", _PIECES.sub("", text)))


def _unescape_in_double_quotes(escape: re.Match[str]) -> str:
    escaped = escape[1]
    if escaped in '"\\$`':
        return escaped
    return "" if escaped.endswith("\n") else escape[0]


def _decode_ansi_c(text: str) -> str:
    """Decode the content of $'…', which browsers use for texts with quotes or line breaks."""
    # Hexadecimal and octal escapes are bytes: several of them may encode one character.
    decoded = bytearray()
    end = 0
    for escape in _ANSI.finditer(text):
        decoded += text[end : escape.start()].encode()
        decoded += _decode_escape(escape)
        end = escape.end()
    return (bytes(decoded) + text[end:].encode()).decode(errors="replace")


def _decode_escape(escape: re.Match[str]) -> bytes:
    byte, short, long, octal, control, letter = escape.groups()
    if byte or octal:
        return bytes([int(byte, 16) if byte else int(octal, 8) & 0xFF])
    if short or long:
        number = int(short or long, 16)
        return (chr(number) if number < 0x110000 else "\ufffd").encode(errors="replace")
    if control:
        return bytes([ord(control.upper()) & 0x1F])
    return _ANSI_LETTERS.get(letter, letter if letter in "\\'\"?" else "\\" + letter).encode()
