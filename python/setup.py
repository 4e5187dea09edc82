"""Puts the library beside the package where the repository has one that is built, so that a wheel needs no installation of it."""

import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

BUILT = Path(__file__).resolve().parent.parent / "target" / "release" / "libviaduct.so"
#: As when it is imported, this names another.
LIBRARY = Path(os.environ.get("VIADUCT_LIBRARY", BUILT))


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if LIBRARY.is_file() and not getattr(self, "editable_mode", False):
            shutil.copy2(LIBRARY, Path(self.build_lib) / "viaduct" / "libviaduct.so.0")


class WithLibrary(Distribution):
    def has_ext_modules(self):
        # Its wheel is for machines of this kind.
        return LIBRARY.is_file()


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=WithLibrary)
