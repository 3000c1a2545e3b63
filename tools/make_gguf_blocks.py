#!/usr/bin/env python3
"""Golden blocks of every ggml type that martlet reads, with the values that the gguf Python package gives for them.

    pip install gguf numpy
    python tools/make_gguf_blocks.py tests/fixtures/gguf/blocks.bin

For each type: its number (u32), the number of bytes of its blocks (u32), the blocks, the values (f32). All little
endian. Codes are random bytes; scales are f16 of ordinary size, one block in eight has subnormal or zero ones.
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
    random = np.random.default_rng(1)
    with open(sys.argv[1], "wb") as out:
        for kind in SCALES:
            data = blocks(kind, random)
            values = quants.dequantize(data.reshape(1, -1), kind).astype("<f4")
            out.write(struct.pack("<II", int(kind), data.size))
            out.write(data.tobytes())
            out.write(values.tobytes())


main()
