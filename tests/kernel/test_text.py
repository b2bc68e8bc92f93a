"""Characters that a terminal obeys, or that nobody sees, are shown as escapes."""

from __future__ import annotations

import json
import unicodedata

import pytest

from eventservice.kernel.text import end_sentence, escape_invisible, escape_invisible_in_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字 🎉", "plain äöü 漢字 🎉"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m", "\\x9b31m"),
        ("\x9d0;title\x9c", "\\x9d0;title\\x9c"),
        ("a\rb\x08\x7f", "a\\x0db\\x08\\x7f"),
        ("user\u202eexe.txt", "user\\u202eexe.txt"),
        ("ad\u200bmin\ufeff", "ad\\u200bmin\\ufeff"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown


def test_no_control_or_format_character_but_joiners_is_left() -> None:
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0xFFFE)]))
    left = {c for c in escape_invisible(every) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    # Marks of Arabic, Syriac and other scripts are seen.
    seen = {c for c in left if 0x600 <= ord(c) <= 0x8FF}
    assert left - seen == {"\n", "\t", "\u200c", "\u200d"}


def test_a_json_document_means_the_same() -> None:
    value = {"a\u202e": ["\x9b31m", "\u200b", "\x7f", "é"]}
    document = escape_invisible_in_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(document) == value
    assert "\x9b" not in document


@pytest.mark.parametrize("text", ["Connection refused", "Connection refused.", "Connection refused.. "])
def test_a_sentence_ends_with_one_full_stop(text: str) -> None:
    assert end_sentence(text) == "Connection refused."
