"""What llama.cpp calls and states of models, in GGUF files, and transformers in folders.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from castwise.checkpoint.gguf._architectures import (
    ARCHITECTURES,
    EMBEDDING,
    FLOAT32,
    HEAD,
    GgufArchitecture,
    MappedTensor,
    Place,
    Rows,
    tensors,
)
from castwise.checkpoint.gguf._from_gguf import ModelFiles, model_of
from castwise.checkpoint.gguf._hyperparameters import architecture, hyperparameters, rotary_factors
from castwise.checkpoint.gguf._tokenizer_to_gguf import FILES, vocabulary

__all__ = [
    "ARCHITECTURES",
    "EMBEDDING",
    "FILES",
    "FLOAT32",
    "HEAD",
    "GgufArchitecture",
    "MappedTensor",
    "ModelFiles",
    "Place",
    "Rows",
    "architecture",
    "hyperparameters",
    "model_of",
    "rotary_factors",
    "tensors",
    "vocabulary",
]
