"""`GradScaler` with torch.amp's methods and state, for parameters with numpy's gradients.

>>> import numpy as np
>>> scaler = GradScaler(init_scale=4.0)
>>> scaler.scale(np.float32(1.5))
np.float32(6.0)
"""

from castwise.loss_scale._gradient_scaler import GradScaler

__all__ = ["GradScaler"]
