"""Store quantized weights as another producer does, without decoding them."""
