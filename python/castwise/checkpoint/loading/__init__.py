"""Who loads a checkpoint: the rules of consumers, each written from its own source.

A consumer builds the modules of a model, quantised or not, by what is stated; the check compares
that with the tensors of the file. These names are what other rooms of castwise take from this one.
"""

from castwise.checkpoint.loading._check import (
    CHECKED,
    LLAMA_CPP,
    check_file,
    check_loading,
    listed,
    loads_by_default,
    unknown_tensors,
)
from castwise.checkpoint.loading._problem import LoadingProblem

__all__ = [
    "CHECKED",
    "LLAMA_CPP",
    "LoadingProblem",
    "check_file",
    "check_loading",
    "listed",
    "loads_by_default",
    "unknown_tensors",
]
