"""Blocks of MXFP8 whose scales and codes PyTorch's and torchao's tests give as the truth.

Values transcribed: of `test_to_mx_rceil`, whose scales are those of an instruction of NVIDIA's. For
blocks of subnormal numbers alone, the codes are those of PyTorch's later tests, where the scale
is 2**-127; torchao's earlier ones flushed them to zero.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from castwise.quantization import dequantize, quantize

BLOCKS = {
    "subnormal": (
        "float32",
        0,
        "6142315 5096174 3345704 6178415 5728750 419002 1716691 4335089 5785800 6234845 "
        "1697524 33075 3975816 3714822 5411407 3040844 7400945 4474166 7257182 1273750 "
        "5872176 4694081 2096530 6273621 67028 7585260 4532315 4599275 6133942 4542483 "
        "5992199 6862780",
        "60 58 53 60 59 29 45 56 59 60 45 4 55 54 58 52 62 57 62 42 59 57 48 60 8 62 57 "
        "57 60 57 59 61",
    ),
    "subnormal bfloat16": (
        "bfloat16",
        0,
        "101 3 47 54 36 19 70 79 35 95 28 120 84 94 20 92 18 42 98 58 3 26 64 86 60 86 "
        "52 23 61 70 59 74",
        "61 20 52 54 49 42 57 58 49 60 46 63 58 60 42 60 41 50 60 54 20 45 56 59 55 59 "
        "53 44 55 57 55 57",
    ),
    "normal, and the least normal number": (
        "float32",
        119,
        "8388608 1063716449 1064039365 1063568877 1051091338 1062185569 1034449408 "
        "1060813641 1054893736 1034907680 1036660744 1023639888 1058536559 1050896496 "
        "1049237634 1064950601 1051852994 1059794063 1054011102 1062023602 1059467900 "
        "1062276774 1059155029 1053287574 1064378711 1055768540 1045266076 1059575077 "
        "1054928758 1040468200 1058061961 1053066436",
        "0 118 119 118 106 117 91 116 110 91 93 80 113 106 105 120 107 115 109 117 114 "
        "117 114 108 119 111 101 114 110 96 113 108",
    ),
    "normal bfloat16, and the least normal number": (
        "bfloat16",
        119,
        "128 16118 16143 16074 16187 16002 16193 16217 15680 16183 16092 16158 16251 "
        "15876 15896 16194 16135 16214 16205 16110 16122 15960 15824 16106 16220 16230 "
        "15952 15896 16000 16144 16232 16157",
        "0 111 113 109 116 104 116 118 84 115 110 114 120 96 98 116 112 117 117 111 112 "
        "102 93 111 118 118 101 98 104 113 118 114",
    ),
    "zero": (
        "float32",
        0,
        "0 " * 32,
        "0 " * 32,
    ),
    "normal": (
        "float32",
        119,
        "1037408064 1058534842 1053630662 1063310394 994704128 1057245441 1060663708 "
        "1058053571 1052395648 1064831570 1038427336 1064777688 1059248393 1060959028 "
        "1062878286 1057799482 1057854101 1053562724 1027482352 1060498324 1063238522 "
        "1060472055 1054346794 1029092912 1056687298 1059146141 1037992128 1064097772 "
        "1056522806 1059255744 1064364912 1060606252",
        "93 113 109 118 53 112 116 113 108 120 94 119 114 116 118 113 113 109 84 115 "
        "118 115 110 85 112 114 94 119 112 114 119 115",
    ),
    "normal bfloat16": (
        "bfloat16",
        119,
        "15752 16143 16182 15896 16195 16186 16048 16223 15988 16231 16140 16088 16032 "
        "16240 16228 16133 16210 16024 16248 16187 16050 15696 16060 15956 16131 16251 "
        "15896 16014 15808 16024 16159 16186",
        "88 113 115 98 116 116 107 118 103 118 113 110 106 119 118 112 117 106 120 116 "
        "107 85 108 101 112 120 98 105 92 106 114 116",
    ),
}
"""The dtype of each block, the byte of its scale, the words of its numbers, and their codes."""


@pytest.mark.parametrize(("dtype", "scale", "words", "codes"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_the_truth_of_torchao(dtype: str, scale: int, words: str, codes: str) -> None:
    size = np.dtype(f"u{ml_dtypes.finfo(dtype).bits // 8}")
    x = np.array([words.split()], size).view(dtype)
    q = quantize(x, "mxfp8_e4m3", recipe="torchao", scale_rule="rceil")
    assert q.scale.view(np.uint8).tolist() == [[scale]]
    assert q.data.view(np.uint8).tolist() == [list(map(int, codes.split()))]


def test_a_block_with_nan_is_nan() -> None:
    x = np.full((1, 32), 0.5, np.float32)
    x[0, 0] = np.nan
    q = quantize(x, "mxfp8_e4m3", recipe="torchao", scale_rule="rceil", nonfinite="nan")
    assert q.scale.view(np.uint8).tolist() == [[255]]
    assert np.isnan(dequantize(q, "float32")).all()
