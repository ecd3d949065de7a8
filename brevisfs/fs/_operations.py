"""All request handlers together, as pyfuse3 wants them."""

from brevisfs.fs._folders import Folders
from brevisfs.fs._guard import guarded
from brevisfs.fs._naming import Naming
from brevisfs.fs._publishing import Publishing
from brevisfs.fs._setting import Setting


@guarded
class Operations(Setting, Naming, Publishing, Folders):
    """The handlers, each topic in a module of its own. Can be called without a mount."""
