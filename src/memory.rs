//! Host buffers.
