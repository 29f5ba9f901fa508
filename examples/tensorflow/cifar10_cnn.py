"""Trains a small convolutional network on pictures like CIFAR-10's: 32 x 32 pixels, three colours, ten classes.

The pictures are made here, so nothing is downloaded: each class is a pattern of soft blobs, moved, mirrored, recoloured and covered with noise.
"""

import argparse
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

SHAPE, CLASSES = (32, 32, 3), 10


def make_pictures(count, seed):
    """(count, 32, 32, 3) floats around 0, and their classes. The patterns are the same for all seeds."""
    smooth = np.random.default_rng(10).normal(size=(CLASSES, 6, 6, 3))
    patterns = smooth.repeat(6, axis=1).repeat(6, axis=2)
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    pictures = np.empty((count, *SHAPE), np.float32)
    for i, label in enumerate(labels):
        y, x = rng.integers(5, size=2)
        picture = patterns[label, y : y + 32, x : x + 32]
        if rng.random() < 0.5:
            picture = picture[:, ::-1]
        pictures[i] = picture * rng.uniform(0.5, 1.5, size=3) + rng.normal(scale=1.0, size=SHAPE)
    return pictures, labels


def make_model(dtype):
    layers = keras.layers

    def block(channels):
        return [
            layers.Conv2D(channels, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]

    dense = [layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(CLASSES)]
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    return keras.Sequential([layers.Input(SHAPE), *block(16), *block(32), *block(64), *dense])


def batches(pictures, labels, size, seed=None):
    """A pipeline; with a seed: shuffled anew in each epoch."""
    data = tf.data.Dataset.from_tensor_slices((pictures, labels))
    if seed is not None:
        data = data.shuffle(len(pictures), seed=seed)
    return data.batch(size, drop_remainder=seed is not None).prefetch(tf.data.AUTOTUNE)


class Clock(keras.callbacks.Callback):
    """When each epoch began. The first takes longer: the steps are traced, and a GPU's libraries are loaded."""

    def on_train_begin(self, logs=None):
        self.begun = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(time.perf_counter())

    def on_train_end(self, logs=None):
        self.begun.append(time.perf_counter())

    def pictures_per_second(self, pictures):
        return pictures * (len(self.begun) - 2) / (self.begun[-1] - self.begun[1])


class Losses(keras.callbacks.Callback):
    """The loss of each of the first batches, which Keras shows as the mean of an epoch so far."""

    def __init__(self, count):
        super().__init__()
        self.count, self.losses = count, []

    def on_train_batch_end(self, batch, logs=None):
        if len(self.losses) < self.count:
            self.losses.append(logs["loss"] * (batch + 1) - sum(self.losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4000, help="pictures to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--no-tf32", action="store_true", help="multiply in float32, where a GPU would take TF32")
    parser.add_argument("--losses", type=int, default=0, help="print the losses of so many first batches")
    args = parser.parse_args()

    tf.config.experimental.enable_tensor_float_32_execution(not args.no_tf32)
    gpus = tf.config.list_physical_devices("GPU")
    print(f"TensorFlow {tf.__version__}, GPUs: {', '.join(gpu.name for gpu in gpus) or 'none'}", flush=True)
    keras.utils.set_random_seed(args.seed)
    model = make_model("float32")
    if args.dtype != "float32":  # from the same weights
        weights = model.get_weights()
        model = make_model(args.dtype)
        model.set_weights(weights)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    pictures, labels = make_pictures(args.images, args.seed)
    test = batches(*make_pictures(1000, args.seed + 1), 250)
    clock, losses = Clock(), Losses(args.losses)
    with tempfile.TemporaryDirectory() as folder:
        best = os.path.join(folder, "best.weights.h5")
        checkpoint = keras.callbacks.ModelCheckpoint(best, monitor="val_accuracy", save_best_only=True, save_weights_only=True)
        model.fit(
            batches(pictures, labels, args.batch, args.seed),
            validation_data=test,
            epochs=args.epochs,
            callbacks=[clock, checkpoint, *([losses] if args.losses else [])],
            verbose=2,
        )
        model.load_weights(best)
    _, accuracy = model.evaluate(test, verbose=0)
    for loss in losses.losses:
        print(f"loss {loss:.9g}")
    speed = f"{clock.pictures_per_second(args.images // args.batch * args.batch):.0f} pictures/s, " if args.epochs > 1 else ""
    print(f"{speed}accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
