"""NumPy arrays by what they hold."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
