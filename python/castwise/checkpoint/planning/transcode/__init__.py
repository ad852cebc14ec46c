"""Store quantised weights as another producer does, without decoding them."""
