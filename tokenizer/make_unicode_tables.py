"""Writes unicode_tables.cc: what the Hugging Face library `tokenizers` says about each code point.

    python3 -m venv ~/tokenizer-venv && ~/tokenizer-venv/bin/pip install tokenizers
    ~/tokenizer-venv/bin/python tokenizer/make_unicode_tables.py

Token ids must equal those of that library, whose parts follow different versions of Unicode (its regular
expressions 16, BERT's punctuation and marks 8). So each class is asked for, code point by code point, instead of
being taken from one version. Canonical decompositions come from Python's unicodedata, corrected where the library's
NFD differs; combining classes from unicodedata. Takes about a minute.
"""

import os
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def matching(pattern):
    """Code points that the pattern matches: those that vanish when matches are replaced by nothing."""
    kept = normalizers.Replace(Regex(pattern), "").normalize_str("".join(map(chr, CODE_POINTS)))
    return set(CODE_POINTS) - set(map(ord, kept))


def bert(**options):
    settings = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**settings, **options}).normalize_str


def ranges_of(codes):
    ranges = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def lowercase_runs():
    """[first, last, stride, difference] with stride 1 or 2. U+0130, the only one with two letters, is left out."""
    lower = bert(lowercase=True)
    runs = []
    for code in CODE_POINTS:
        text = lower(chr(code))
        if text == chr(code):
            continue
        if len(text) != 1:
            assert code == 0x130 and text == "i\u0307", hex(code)
            continue
        difference = ord(text) - code
        run = runs[-1] if runs else None
        if run and run[3] == difference and code - run[1] in (1, 2) and \
                (run[0] == run[1] or code - run[1] == run[2]):
            run[2] = code - run[1]
            run[1] = code
        else:
            runs.append([code, code, 1, difference])
    return runs


def decompositions():
    """(code, one or two code points), one step each; Hangul is computed."""
    nfd = normalizers.NFD().normalize_str
    singles, pairs = [], []
    for code in CODE_POINTS:
        if 0xAC00 <= code <= 0xD7A3:
            continue
        said = nfd(chr(code))
        step = unicodedata.decomposition(chr(code))
        parts = [] if not step or step.startswith("<") else [int(p, 16) for p in step.split()]
        if said != unicodedata.normalize("NFD", chr(code)):
            parts = [] if said == chr(code) else [ord(c) for c in said]
        assert len(parts) <= 2, hex(code)
        if len(parts) == 1:
            singles.append([code, *parts])
        elif parts:
            pairs.append([code, *parts])
    return singles, pairs


def combining_classes():
    runs = []
    for code in CODE_POINTS:
        value = unicodedata.combining(chr(code))
        if not value:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    return runs


def array(type_name, name, rows):
    lines = [f"const {type_name} {name}[] = {{"]
    line = "   "
    for row in rows:
        cell = " {" + ",".join(str(v) for v in row) + "},"
        if len(line) + len(cell) > 118:
            lines.append(line)
            line = "   "
        line += cell
    lines += [line, "};", f"const size_t {name}Size = std::size({name});", ""]
    return lines


def main():
    clean = bert(clean_text=True)
    strip = bert(strip_accents=True)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    letters, numbers, spaces = matching(r"\p{L}"), matching(r"\p{N}"), matching(r"\s")
    dropped = {c for c in CODE_POINTS if clean("a" + chr(c) + "b") == "ab"}
    marks = {c for c in CODE_POINTS if strip(chr(c)) == ""}
    punctuation = {c for c in CODE_POINTS if len(split("a" + chr(c) + "b")) == 3}
    singles, pairs = decompositions()
    lines = [
        "// Written by make_unicode_tables.py, which says what each table is. Not edited by hand.",
        '#include "tokenizer/unicode_tables.h"',
        "",
        "#include <iterator>",
        "",
        "namespace tercio::tokenizer {",
        "",
        "// clang-format off",
    ]
    for name, codes in (("kLetterRanges", letters), ("kNumberRanges", numbers), ("kSpaceRanges", spaces),
                        ("kBertDroppedRanges", dropped), ("kMarkRanges", marks),
                        ("kBertPunctuationRanges", punctuation)):
        lines += array("CodeRange", name, ranges_of(codes))
    lines += array("LowercaseRun", "kLowercaseRuns", lowercase_runs())
    lines += array("CombiningRange", "kCombiningRanges", combining_classes())
    lines += array("Decomposition", "kDecompositions", sorted(singles + pairs))
    lines += ["// clang-format on", "", "}  // namespace tercio::tokenizer"]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode_tables.cc")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
