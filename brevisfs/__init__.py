"""BrevisFS: safetensors models stored as small programs, served as the plain files they are."""

__version__ = "0.1.0"
