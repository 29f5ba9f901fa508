import cupy
import numpy as np
from cuda import compute

values = cupy.asarray(np.random.default_rng(1).integers(-1000, 1000, size=5000).astype(np.int32))
out = cupy.empty(1, dtype=np.int32)
compute.reduce_into(d_in=values, d_out=out, op=compute.OpKind.PLUS, num_items=len(values), h_init=np.array([0], dtype=np.int32))
assert out.get()[0] == values.get().sum()
sums = cupy.empty_like(values)
compute.inclusive_scan(d_in=values, d_out=sums, op=lambda a, b: a + b, init_value=np.array([0], dtype=np.int32), num_items=len(values))
np.testing.assert_array_equal(sums.get(), np.cumsum(values.get()))
print("right")
