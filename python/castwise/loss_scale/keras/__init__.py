"""Keras 3's `LossScaleOptimizer`: around any optimizer of arrays, and around those of Keras."""
