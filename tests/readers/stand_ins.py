"""Files of programs that are not installed: everything else of them is replaced by stand-ins."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from unittest.mock import MagicMock


def stand_in(name):
    """A class, if it is named as one, which can be inherited from; else something that can be used."""
    is_class = name[0].isupper() and not name.isupper()
    return type(name, (), {}) if is_class else MagicMock(name=name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of these packages, and gives an object that has every name."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = stand_in
        return module

    def exec_module(self, module):
        """There is nothing to run."""


def load(path, packages):
    """The module in a file, whose imports of these packages are stand-ins."""
    sys.meta_path.insert(0, StandIns(packages))
    spec = importlib.util.spec_from_file_location("loaded", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded"] = module
    spec.loader.exec_module(module)
    return module
