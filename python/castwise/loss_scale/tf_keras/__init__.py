"""TF 2's `LossScaleOptimizer`, around arrays or tf_keras, and TF 2.4's loss scales."""
