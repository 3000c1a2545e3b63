#!/usr/bin/env python3
"""Golden blocks of every ggml type that martlet reads, with the values that the gguf Python package gives for them.

    pip install gguf numpy
    python tools/make_gguf_blocks.py tests/fixtures/gguf/blocks.bin
    python tools/make_gguf_blocks.py --sets

For each type: its number (u32), the number of bytes of its blocks (u32), the blocks, the values (f32). All little
endian. Codes are random bytes; scales are f16 of ordinary size, one block in eight has subnormal or zero ones.
The IQ1, IQ2 and IQ3 types have as many blocks as it takes to use every point of their codebooks once, and the largest
and smallest scales of either sign. --sets prints the codebooks as words of bits, as grids.rs of martlet-tensor has them.
"""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGML_QUANT_SIZES, quants

# Where the f16 scales of a block lie, by type.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.MXFP4: [],
}
BLOCKS = 16

# Types with a codebook, and how many blocks of each there are.
CODEBOOKS = {T.IQ1_S: 64, T.IQ1_M: 16, T.IQ2_XXS: 16, T.IQ2_XS: 16, T.IQ2_S: 32, T.IQ3_XXS: 16, T.IQ3_S: 16}
EXTREME = {3: 3e-6, 5: 65504, 7: -65504, 9: 6e-8, 11: 0.0, 13: -0.0, 14: -6e-8}


def codebook_blocks(kind, random):
    count = CODEBOOKS[kind]
    data = random.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    scales = (random.standard_normal(count) * 0.05).astype(np.float16)
    for block, scale in EXTREME.items():
        scales[block] = np.float16(scale)
    if kind == T.IQ1_M:  # four bits of the scale in the upper bits of each of the last four u16
        bits = scales.view(np.uint16)
        for i in range(4):
            data[:, 49 + 2 * i] = data[:, 49 + 2 * i] & 15 | ((bits >> (4 * i) & 15) << 4).astype(np.uint8)
    else:
        data[:, :2] = scales.view(np.uint8).reshape(count, 2)
    use_all_points(kind, data)
    return data


def use_all_points(kind, data):
    """Writes the indices of all points, in steps of five, where blocks have indices (of IQ1_M: of a quarter)."""
    points = getattr(quants, kind.name).grid_shape[0]
    each = 64 if kind in (T.IQ3_XXS, T.IQ3_S) else 32
    index = (np.arange(len(data) * each) * 5 % points).reshape(len(data), each)
    assert len(data) * each >= points or kind == T.IQ1_M
    upper = index >> 8

    def gather(bits, n):  # n values of `bits` bits in one
        return sum(upper[:, i::n] << (bits * i) for i in range(n))

    if kind == T.IQ2_XXS:
        words = data[:, 2:].reshape(len(data), 8, 8)
        words[:, :, :4] = index.reshape(len(data), 8, 4)
        data[:, 2:] = words.reshape(len(data), -1)
    elif kind == T.IQ2_XS:
        data[:, 2:66:2] = index & 255
        data[:, 3:66:2] = data[:, 3:66:2] & 254 | upper
    else:
        at = 0 if kind == T.IQ1_M else 2
        data[:, at:at + each] = index & 255
    if kind == T.IQ1_S:
        packed = gather(3, 4)
        data[:, 34::2] = packed & 255
        data[:, 35::2] = data[:, 35::2] & 0xf0 | packed >> 8
    elif kind == T.IQ1_M:
        data[:, 32:48] = data[:, 32:48] & 0x88 | gather(4, 2)
    elif kind == T.IQ2_S:
        data[:, 66:74] = gather(2, 4)
    elif kind == T.IQ3_S:
        data[:, 66:74] = gather(1, 8)


def print_sets():
    for kind in CODEBOOKS:
        if kind == T.IQ1_M:  # that of IQ1_S
            continue
        quant = getattr(quants, kind.name)
        quant.init_grid()
        levels = [quant.grid_map.index(x) for x in quant.grid.flatten()]
        points = np.array(levels).reshape(quant.grid_shape)
        base, digits = len(quant.grid_map), quant.grid_shape[1]
        numbers = [int(n) for n in (points * base ** np.arange(digits)).sum(axis=1)]
        assert numbers == sorted(set(numbers))
        even = not (points.sum(axis=1) % 2).any()
        members, bits = set(numbers), []
        for n in range(base ** digits):
            if not even or sum(n // base ** i % base for i in range(digits)) % 2 == 0:
                bits.append(n in members)
        words = [sum(bit << j for j, bit in enumerate(bits[i:i + 64])) for i in range(0, len(bits), 64)]
        print(f"#[rustfmt::skip]\nconst {kind.name}_SET: [u64; {len(words)}] = [")
        for i in range(0, len(words), 5):
            print("    " + " ".join(f"0x{word:016x}," for word in words[i:i + 5]))
        print("];\n")


def blocks(kind, random):
    size = GGML_QUANT_SIZES[kind][1]
    data = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = (random.standard_normal(BLOCKS) * 0.05).astype(np.float16)
        scales[3] = np.float16(3e-6)  # subnormal
        scales[11] = np.float16(0)
        data[:, at:at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if kind == T.MXFP4:
        data[:, 0] = [0, 1, 2, 3, 100, 118, 119, 120, 121, 122, 125, 126, 127, 128, 200, 250]
    return data


def main():
    if sys.argv[1] == "--sets":
        return print_sets()
    random = np.random.default_rng(1)
    with open(sys.argv[1], "wb") as out:
        for kind in [*SCALES, *CODEBOOKS]:
            data = codebook_blocks(kind, random) if kind in CODEBOOKS else blocks(kind, random)
            values = quants.dequantize(data.reshape(1, -1), kind).astype("<f4")
            out.write(struct.pack("<II", int(kind), data.size))
            out.write(data.tobytes())
            out.write(values.tobytes())


main()
