import numpy as np
import tensorflow as tf

assert tf.config.list_physical_devices("GPU"), "TensorFlow sees no GPU"
rng = np.random.default_rng(1)
x = rng.normal(size=(512, 28, 28, 1)).astype(np.float32)
y = (x[:, :14].mean(axis=(1, 2, 3)) > x[:, 14:].mean(axis=(1, 2, 3))).astype(int)
tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((28, 28, 1)),
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(2),
    ]
)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=20, verbose=0)
_, accuracy = model.evaluate(x, y, verbose=0)
assert accuracy > 0.9, accuracy
with tf.device("CPU"):
    expected = model(x[:64])
np.testing.assert_allclose(model(x[:64]), expected, rtol=1e-3, atol=1e-3)
print("right")
