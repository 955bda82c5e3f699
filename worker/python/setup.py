"""What pyproject.toml cannot say: the version, which is the Makefile's, and that a wheel with libpsd in it is for one
kind of machine."""

import os
import pathlib

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel

HAS_LIBRARY = any(pathlib.Path("psd/lib").glob("libpsd.so.*"))


class Package(Distribution):
    def has_ext_modules(self):
        return HAS_LIBRARY


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", "linux_x86_64" if HAS_LIBRARY else "any"


setup(version=os.environ.get("PSD_VERSION", "0.1.0"), distclass=Package, cmdclass={"bdist_wheel": Wheel})
