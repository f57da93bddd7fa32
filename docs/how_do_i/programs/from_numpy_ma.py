import numpy as np

import maskgrad as mg

a = np.ma.masked_invalid([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
x = mg.from_numpy(a)
print(a.mask.tolist(), x.mask.tolist())
print(a.mean(axis=0).tolist(), x.mean(0).tolist())
print(a.compressed().tolist(), x.compressed().tolist())
print(a.std().item() == x.std(correction=0).item(), x.to_numpy().mask.tolist() == a.mask.tolist())

a[0, 0] = np.ma.masked
y = x.clone()  # x shares its memory with a
y[0, 0] = mg.unspecified
print(a.tolist(), y.tolist())
