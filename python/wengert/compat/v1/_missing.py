"""What to write instead of the names of TensorFlow 1 that are not here."""

from __future__ import annotations

_DYNAMIC = "tf.where(mask, x, y), or NumPy on what a run gives (the size would depend on values)"
_FEED = "placeholders, fed with batches, e.g. from wengert.data.DataLoader"
_PYTHON = "NumPy on what a run gives"

WORDS = {
    # Names of before version 1.
    "mul": "tf.multiply",
    "sub": "tf.subtract",
    "neg": "tf.negative",
    "pack": "tf.stack",
    "unpack": "tf.unstack",
    "batch_matmul": "tf.matmul",
    "select": "tf.where",
    "initialize_variables": "tf.variables_initializer",
    "all_variables": "tf.global_variables",
    "merge_all_summaries": "tf.summary.merge_all",
    "merge_summary": "tf.summary.merge",
    "scalar_summary": "tf.summary.scalar",
    "histogram_summary": "tf.summary.histogram",
    "image_summary": "tf.summary.image",
    "train.SummaryWriter": "tf.summary.FileWriter",
    "nn.rnn": "tf.nn.static_rnn",
    "nn.bidirectional_rnn": "tf.nn.static_bidirectional_rnn",
    "models": "input_data of wengert.compat.v1.examples.tutorials.mnist, tf.nn.rnn_cell",
    # Names of version 1.
    "keras": "tf.layers, or wengert.nn",
    "estimator": "a loop over session.run",
    "data": _FEED,
    "FIFOQueue": _FEED,
    "RandomShuffleQueue": _FEED,
    "TFRecordReader": _FEED,
    "TextLineReader": _FEED,
    "WholeFileReader": _FEED,
    "python_io": _FEED,
    "parse_single_example": _FEED,
    "decode_raw": _FEED,
    "image": "wengert.nn and slices of images; NumPy on what is fed",
    "feature_column": "tf.one_hot and tf.nn.embedding_lookup",
    "boolean_mask": _DYNAMIC,
    "unique": _DYNAMIC,
    "unique_with_counts": _DYNAMIC,
    "dynamic_partition": _DYNAMIC,
    "dynamic_stitch": "tf.concat and tf.gather",
    "SparseTensor": "a dense tensor, or indices and tf.gather",
    "sparse_placeholder": "a placeholder of indices, and tf.gather or tf.one_hot",
    "sparse_tensor_dense_matmul": "tf.matmul of a dense tensor, or tf.gather and tf.reduce_sum",
    "sparse_to_dense": "tf.one_hot",
    "TensorArray": "tf.scan, tf.map_fn or tf.stack",
    "py_func": "wengert.host_call, or an op of wengert.custom_op",
    "numpy_function": "wengert.host_call, or an op of wengert.custom_op",
    "string": f"Python's strings, and {_PYTHON}",
    "strings": f"Python's strings, and {_PYTHON}",
    "lookup": "a dict, and its numbers in feeds",
    "enable_eager_execution": "wengert itself: it is eager",
    "GradientTape": "wengert.grad, or x.backward()",
    "function": "wengert.compile",
    "complex64": "pairs of real numbers",
    "fft": "numpy.fft on what a run gives",
    "svd": _PYTHON,
    "qr": _PYTHON,
    "matrix_inverse": _PYTHON,
    "cholesky": _PYTHON,
    "orthogonal_initializer": "tf.glorot_uniform_initializer",
    "distributions": "tf.random_normal and formulas",
    "distribute": "one process",
    "saved_model": "tf.train.Saver, or wengert.compile(graph.function(...))",
    "import_graph_def": "wengert.parse_graph",
    "train.Coordinator": _FEED,
    "train.start_queue_runners": _FEED,
    "strided_slice": "x[begin:end:step]",
    "segment_sum": "tf.unsorted_segment_sum",
    "segment_mean": "tf.unsorted_segment_sum of values and of ones",
    "scatter_nd": "tf.unsorted_segment_sum",
    "sparse_softmax": "tf.nn.softmax",
    "layers.Dense": "tf.layers.dense",
    "layers.Conv2D": "tf.layers.conv2d",
    "layers.BatchNormalization": "tf.layers.batch_normalization",
    "layers.Dropout": "tf.layers.dropout",
    "layers.separable_conv2d": "tf.nn.separable_conv2d",
    "train.batch": _FEED,
    "train.shuffle_batch": _FEED,
    "train.string_input_producer": _FEED,
    "train.import_meta_graph": "the code that made the graph, then tf.train.Saver().restore",
    "train.write_graph": "str(graph), or wengert.io.tensorboard.write_graph",
    "train.MonitoredTrainingSession": "tf.Session and tf.train.Saver",
    "train.MonitoredSession": "tf.Session and tf.train.Saver",
    "train.Supervisor": "tf.Session and tf.train.Saver",
    "train.FtrlOptimizer": "tf.train.AdagradOptimizer",
    "train.SyncReplicasOptimizer": "one process",
    "train.ClusterSpec": "one process",
    "train.Server": "one process",
    "nn.ctc_loss": "wengert.nn",
    "nn.ctc_beam_search_decoder": _PYTHON,
    "nn.raw_rnn": "tf.nn.dynamic_rnn or tf.while_loop",
    "nn.embedding_lookup_sparse": "tf.nn.embedding_lookup and tf.reduce_sum",
    "nn.fractional_max_pool": "tf.nn.max_pool",
    "nn.max_pool_with_argmax": "tf.nn.max_pool",
    "nn.fused_batch_norm": "tf.nn.moments and tf.nn.batch_normalization",
    "contrib.seq2seq": "tf.nn.dynamic_rnn and tf.while_loop",
    "contrib.learn": "a loop over session.run",
    "contrib.slim": "tf.layers",
    "contrib.data": _FEED,
    "contrib.rnn.AttentionCellWrapper": "wengert.nn.MultiHeadAttention",
    "contrib.crf": "tf.scan over the scores",
}
"""Names, with those of namespaces before them, and what to write."""


def remedy(name: str) -> str:
    """The message for a name that is not there."""
    text = f"module 'wengert.compat.v1' has no attribute {name!r}"
    parts = name.split(".")
    if any(part.startswith("__") for part in parts):
        return text
    for n in range(len(parts), 0, -1):
        word = WORDS.get(".".join(parts[:n]))
        if word is not None:
            return f"{text}: use {word}"
    return (
        f"{text}: it is not provided; functions of wengert work on tensors of this graph too "
        "(docs/tensorflow1.md)"
    )
