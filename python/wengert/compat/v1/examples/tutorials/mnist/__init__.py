"""The digits of TensorFlow 1's tutorials."""

from wengert.compat.v1.examples.tutorials.mnist import input_data

__all__ = ["input_data"]
