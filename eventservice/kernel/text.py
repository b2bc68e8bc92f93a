"""Characters that nobody sees, but that change what is seen, and the ends of sentences that quote messages of others."""

from __future__ import annotations

import re

# Character classes of regular expressions, for Python, Rust and JavaScript.
# Control characters, also those that terminals obey (C1), and the line breaks of Unicode.
CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
# Characters that change the direction of text, or have no width.
INVISIBLE = r"\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
# They have no width either, but Persian and many emojis are written with them.
JOINERS = r"\u200c\u200d"

_UNSAFE = re.compile(rf"(?![\n\t])[{CONTROLS}{INVISIBLE}]")


def escape_invisible(text: str) -> str:
    """Return the text with `\\x9b` or `\\u202e` in place of such characters, for terminals. Line breaks and tabs remain."""
    return _UNSAFE.sub(lambda found: _format(found[0], short=True), text)


def escape_invisible_in_json(document: str) -> str:
    """Return the JSON document with escapes in place of such characters: it means the same."""
    return _UNSAFE.sub(lambda found: _format(found[0], short=False), document)


def end_sentence(text: str) -> str:
    """Return the text with one full stop at its end. Messages of libraries and servers may have one, or none."""
    return f"{text.rstrip('. ')}."


def _format(character: str, *, short: bool) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if short and code < 0x100 else f"\\u{code:04x}"
