"""All request handlers together, as pyfuse3 wants them."""

from brevisfs.fs._attributes import Attributes
from brevisfs.fs._files import Files
from brevisfs.fs._folders import Folders
from brevisfs.fs._guard import guarded
from brevisfs.fs._readonly import ReadOnly
from brevisfs.fs._xattrs import Xattrs


@guarded
class Operations(Attributes, Folders, Files, Xattrs, ReadOnly):
    """The handlers, each topic in a module of its own. Can be called without a mount."""
