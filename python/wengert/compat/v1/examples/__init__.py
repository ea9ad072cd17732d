"""What TensorFlow 1 has under `tensorflow.examples`."""
