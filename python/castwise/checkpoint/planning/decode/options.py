"""How quantized weights are to be decoded."""

from typing import Any, NamedTuple, get_args

from castwise._core import finfo, get_num_threads
from castwise._numbers import is_integer
from castwise._options import Arithmetic
from castwise.quantization.producers.layouts import BF16
from castwise.text.spelling import typed_format
from castwise.text.wording import argument, setting


class Decode(NamedTuple):
    """What is decoded, and to what."""

    format: str  # the format of decoded weights
    arithmetic: Arithmetic  # "peer" or "exact"
    # A regular expression that matches the whole names of the weights; None for all
    only: str | None
    threads: int  # how many threads may decode
    may_be_plain: bool = False  # whether a checkpoint without quantized weights is taken as it is
    is_written: bool = True  # or else only compared: no loss is counted, and no change announced


# What weights can be decoded to.
FORMATS = (BF16, "float16", "float32")


def decoding_of(
    dtype: Any,  # noqa: ANN401  (as it is given)
    arithmetic: Arithmetic,
    only: str | None,
    threads: int | None,
    *,
    may_be_plain: bool = False,
) -> Decode:
    name = finfo(typed_format(dtype, argument("dtype"))).name
    if name not in FORMATS:
        raise ValueError(setting("dtype", dtype) + f": weights are decoded to {', '.join(FORMATS)}")
    if arithmetic not in get_args(Arithmetic):
        raise ValueError(
            f"arithmetic={arithmetic!r} is not valid; use {' or '.join(get_args(Arithmetic))}"
        )
    if only is not None and not isinstance(only, str):
        raise TypeError(f"only must be a regular expression, not {only!r}")
    return Decode(name, arithmetic, only, checked_threads(threads), may_be_plain)


def checked_threads(threads: object) -> int:
    if threads is None:
        return get_num_threads()
    if not is_integer(threads) or threads <= 0:
        raise ValueError(argument("threads", threads) + " is not valid; use an int of 1 or more")
    return threads
