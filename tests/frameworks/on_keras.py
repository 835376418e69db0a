"""Keras on TensorFlow as tests have it: quiet, and on the CPU. Without them, tests are skipped.

from tests.frameworks.on_keras import keras, tf
"""

import os

import pytest

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

REASON = "needs keras and tensorflow, which embstore does not depend on"
keras = pytest.importorskip("keras", reason=REASON)
tf = pytest.importorskip("tensorflow", reason=REASON)
tf.config.set_visible_devices([], "GPU")
