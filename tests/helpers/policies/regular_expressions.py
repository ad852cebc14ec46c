"""Regular expressions and paths made of what tells Python's `re` and the linear engine apart."""

# ruff: noqa: SIM905 - split words are easier to read than as many quoted signs

from __future__ import annotations

import random

_ATOMS = (
    *r"a b _ / 1 A .".split(),
    *r"\d \w \s \. \/ [ab] [^a] [a-c1] [^/] []a] [a-] [\d_] [^\w] \b ^ $ \Z \A".split(),
    *r"\D \S \W \n - k (?i:a) (?P<n>a) (?=a) (?<!b) \1 { } ] [ ( ) \x41 \ (?#x) ab \B [\n]".split(),
    *r"[[a] [a&&b] [Z-a] [^B-k] [é-ü] \- (?>a) \N \q".split(),
    *r"(?s:.) (?-i:a) (?a:\w) (?a:\b) (?m:^) (?m:$) [\w-] [\d-a] \u0061 \U00000062".split(),
    *r"(?P<m>b) (?au:a) (?i-i:a) (?-:a) (?-s:.) {,} a{ a{1 [~~] [||] (?u:a) (?a:\d)".split(),
    *(r"\N{DIGIT ONE}", r"[\N{SPACE}a]", "(?x: a\n#)\n)", "(?x:_ )", "(?#c)", " ", "#"),
    *"é \u017f \u212a".split(),  # the last two are s and k where case does not count
)
# `re.search` overlooks matches of `(?a:\W)` at characters beyond ASCII: its table of first
# characters forgets the flag of a group. So complements stand under flags of the whole only.
_QUANTIFIERS = (*[""] * 4, *r"* + ? {2} {1,2} {,2} {1,} *? +? ?? {2}? *+ ** {a} {2,1}".split())
_FLAGS = (
    "",
    "",
    "",
    "(?i)",
    "(?s)",
    "(?is)",
    "(?m)",
    "(?x)",
    "(?a)",
    "(?ai)",
    "(?mx)",
    "(?sxu)",
    "(?-i)",
    "^",
)
_CHARACTERS = "aaabbA1/_.c-\n é\u017fk\u212a0]\x1c\u0663"


def pattern(draw: random.Random) -> str:
    """A pattern, valid or not."""
    return draw.choice(_FLAGS) + _sequence(draw, 0)


def path(draw: random.Random) -> str:
    """A short text over the characters that patterns are about."""
    return "".join(draw.choice(_CHARACTERS) for _ in range(draw.randint(0, 6)))


def _sequence(draw: random.Random, depth: int) -> str:
    parts = []
    for _ in range(draw.randint(0, 4)):
        if depth < 3 and draw.random() < 0.25:
            parts.append(draw.choice(["(", "(?:"]) + _sequence(draw, depth + 1) + ")")
        else:
            parts.append(draw.choice(_ATOMS))
        parts.append(draw.choice(_QUANTIFIERS))
        if draw.random() < 0.12:
            parts.append("|")
    return "".join(parts)
