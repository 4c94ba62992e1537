"""The extension and its wheel tag; everything else stands in pyproject.toml."""

import sysconfig

from setuptools import setup

free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # no stable ABI there before 3.15

setup(
    cffi_modules=["build_ffi.py:ffibuilder"],
    options={} if free_threaded else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
