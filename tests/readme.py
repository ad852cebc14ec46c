"""The generated parts of the README: `python tests/readme.py` writes them anew.

The account of the README's own first command, the accuracy of the digits model in several formats,
and the table of formats. The table of speed is written by `benches/cast.py --readme`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import castwise

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DIGITS = ROOT / "benches" / "digits"
SCORED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")


def section(text: str, name: str) -> str:
    """What stands between the markers of a part."""
    found = re.search(f"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.DOTALL)
    assert found, f"README.md has no part {name!r}"
    return found[1]


def replaced(text: str, name: str, content: str) -> str:
    """The text with another content between the markers of a part."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    return text.replace(begin + section(text, name) + end, begin + content + end)


def castwise_command(*arguments: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "castwise", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def account(text: str) -> str:
    """What the README's first command prints, but for paths."""
    arguments = re.search(r"bin/castwise (cast \S+) \S+ (--dtype \S+)", text)
    assert arguments
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "digits-float8.safetensors")
        printed = castwise_command(*arguments[1].split(), target, *arguments[2].split())
    return f"```\n{printed.replace(target, 'digits-float8.safetensors')}```\n"


def accuracy() -> str:
    """Markdown: accuracy of the digits model, as trained and cast to several formats."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(DIGITS / "digits.safetensors")]
        for name in SCORED:
            files.append(str(Path(folder) / f"{name}.safetensors"))
            castwise_command("cast", files[0], files[-1], "--dtype", name)
        command = [sys.executable, str(DIGITS / "score.py"), "--json", *files]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    lines = ["| weights | file | correct | accuracy |", "|---|--:|--:|--:|"]
    for row in rows:
        share = f"{row['correct']} of {row['images']}"
        lines.append(f"| {row['dtype']} | {row['bytes']:,} B | {share} | {row['accuracy']:.2%} |")
    return "\n".join(lines) + "\n"


def formats() -> str:
    """Markdown: one line per row of the table of formats."""
    lines = [
        "| format | also | bits | exponent, mantissa, bias | max | smallest normal | specials |",
        "|---|---|--:|---|--:|--:|---|",
    ]
    for name in castwise.formats():
        row = castwise.finfo(name)
        also = ", ".join(f"`{alias}`" for alias in row.aliases)
        component = row.component or row
        if component.kind == "float":
            sign = "" if component.signed else "unsigned "
            layout = f"{sign}{component.exponent_bits}, {component.mantissa_bits}, {component.bias}"
            numbers = (
                f"{component.max:.6g} | {component.smallest_normal:.6g} | {component.specials}"
            )
        else:
            layout, numbers = "", f"{row.max} | | "
        if row.component:
            layout = f"2 of {row.component.name}"
        missing = "" if row.dtype is not None else " (no numpy dtype yet)"
        lines.append(f"| `{name}`{missing} | {also} | {row.bits} | {layout} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all parts anew."""
    text = README.read_text("utf-8")
    for name, content in (
        ("account", account(text)),
        ("accuracy", accuracy()),
        ("formats", formats()),
    ):
        text = replaced(text, name, content)
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
