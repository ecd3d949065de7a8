"""The one thing pyproject.toml cannot say: where the C extension is described."""

from setuptools import setup

setup(cffi_modules=["native/build_brevis.py:ffibuilder"])
