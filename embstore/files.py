"""Tables as files of other programs: the names of `embstore_client.files`."""

from embstore_client.files import *  # noqa: F403
from embstore_client.files import __all__ as __all__
