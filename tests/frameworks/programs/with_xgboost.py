import numpy as np
import xgboost

rng = np.random.default_rng(1)
x = rng.normal(size=(2000, 10)).round(1).astype(np.float32)  # few values, so that both find the same cuts
y = (x[:, 0] * x[:, 1] + np.sin(x[:, 2]) > 0).astype(int)
found = {}
for device in ("cuda", "cpu"):
    data = xgboost.DMatrix(x[:1500], y[:1500])
    # On a GPU a feature whose best split leaves a child of less weight is passed over with all its splits, on a CPU only that split.
    parameters = {"device": device, "objective": "binary:logistic", "eval_metric": "auc", "max_depth": 4, "min_child_weight": 0}
    booster = xgboost.train(parameters, data, num_boost_round=20)
    found[device] = booster.predict(xgboost.DMatrix(x[1500:]))
np.testing.assert_allclose(found["cuda"], found["cpu"], atol=1e-4)
assert ((found["cuda"] > 0.5) == y[1500:]).mean() > 0.85
print("right")
