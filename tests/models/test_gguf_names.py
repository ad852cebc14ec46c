"""What llama.cpp calls tensors: the package gguf's own names are those that castwise writes."""

import pytest
from castwise.checkpoint.gguf import ARCHITECTURES, tensors
from castwise.models._gguf_names import find_gguf_names

pytest.importorskip("gguf")

CONFIG = dict.fromkeys(
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "num_experts",
        "num_local_experts",
        "num_hidden_layers",
        "head_dim",
    ],
    2,
)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_names_that_castwise_writes_are_those_of_the_package(kind: str) -> None:
    row = ARCHITECTURES[kind]
    written = {
        tensor.name: [place.name for place in tensor.places] for tensor in tensors(row, CONFIG)
    }
    found = find_gguf_names(row.name, CONFIG["num_hidden_layers"], written)
    assert len(found) > 20
    for name, places in written.items():
        if len(places) == 1:
            assert found[name] == places[0], name
        else:  # gate and up of gpt-oss lie in turn in one tensor, which its converter splits
            assert found[name] is None, name


def test_an_architecture_that_llama_cpp_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"'no-such' is no architecture of llama\.cpp"):
        find_gguf_names("no-such", 2, [])
