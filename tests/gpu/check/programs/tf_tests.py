"""TensorFlow: a CIFAR network in Keras, its images a second and its time to a fixed accuracy.

CIFAR-10 itself where it is on disk (~/.keras/datasets/cifar-10-batches-py), else made-up pictures of its shape: ten coarse patterns under noise."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import common
import numpy
import tensorflow as tf

BATCH, GOAL = 128, {"CIFAR-10": 0.45, "made-up pictures": 0.9}


def pictures() -> tuple[str, Any, Any]:
    folder = Path.home() / ".keras" / "datasets" / "cifar-10-batches-py"
    if (folder / "data_batch_1").is_file():
        stored = pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")
        images = stored[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype("float32") / 255
        return "CIFAR-10", images, numpy.array(stored[b"labels"])
    random = numpy.random.default_rng(7)
    labels = random.integers(0, 10, 4096)
    patterns = random.random((10, 8, 8, 3), dtype=numpy.float32).repeat(4, axis=1).repeat(4, axis=2)
    return "made-up pictures", 0.5 * patterns[labels] + 0.5 * random.random((4096, 32, 32, 3), dtype=numpy.float32), labels


def network() -> Any:
    tf.keras.utils.set_random_seed(7)
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()])
    for layer in (layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()):
        model.add(layer)
    model.add(layers.Dense(64, activation="relu"))
    model.add(layers.Dense(10))
    return model


def cifar_steps() -> dict[str, Any]:
    """Single steps: the same numbers, and images a second."""
    _, x, y = pictures()
    model, optimizer = network(), tf.keras.optimizers.SGD(0.02)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batch, labels = tf.constant(x[:BATCH]), tf.constant(y[:BATCH])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(batch, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    last: list[Any] = []

    def kept() -> Any:
        last[:] = [step()]
        return last[0]

    return common.timed(kept, lambda: last[0].numpy(), float, BATCH)


def cifar_fit() -> dict[str, Any]:
    """Keras' own training loop until the accuracy is there."""
    what, x, y = pictures()
    model, goal, begin = network(), GOAL[what], time.perf_counter()
    model.compile(tf.keras.optimizers.Adam(1e-3), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    epoch, accuracy, epoch_s = 0, 0.0, 1.0
    while epoch < 20 and accuracy < goal:
        epoch += 1
        epoch_begin = time.perf_counter()
        accuracy = model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False).history["accuracy"][0]
        epoch_s = time.perf_counter() - epoch_begin
    if accuracy < goal:
        raise RuntimeError(f"an accuracy of {accuracy:.2f} after {epoch} epochs, not {goal}")
    return {"values": [], "data": what, "goal": goal, "epochs": epoch, "to_accuracy_s": time.perf_counter() - begin, "images_s": len(x) / epoch_s}


def version() -> str:
    found = tf.config.list_physical_devices("GPU")
    if bool(found) != (common.options.device == "cuda"):
        raise SystemExit(f"TensorFlow {tf.__version__} sees {len(found)} GPUs")
    return f"TensorFlow {tf.__version__}"


TESTS: dict[str, Callable[[], dict[str, Any]]] = {"cifar_steps": cifar_steps, "cifar_fit": cifar_fit}

if __name__ == "__main__":
    sys.exit(common.main(TESTS, version))
