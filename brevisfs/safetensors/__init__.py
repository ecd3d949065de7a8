"""The strict parser of safetensors headers: the one place that knows that format."""

from brevisfs.safetensors._parse import MAX_HEADER, Layout, NotSafetensors, Tensor, parse, word_bits

__all__ = ["MAX_HEADER", "Layout", "NotSafetensors", "Tensor", "parse", "word_bits"]
