"""What the operating system offers beyond POSIX, and whether to use it.

Linux is what Ottla is made for. Elsewhere the same work is done by plain reads and writes; setting
OTTLA_PORTABLE=1 does that on Linux too, so that tests can go both ways.
"""

from __future__ import annotations

import os
import socket
import sys

from ottla.storage.files import PORTABLE

# More of the same message follows: do not send a small packet now.
MORE_FOLLOWS: int = 0 if PORTABLE else getattr(socket, "MSG_MORE", 0)
# Files without a disk beneath, that another process can open by a path.
HAS_MEMORY_FILES: bool = not PORTABLE and hasattr(os, "memfd_create")
HAS_SENDFILE: bool = not PORTABLE and hasattr(os, "sendfile")
# A mapping grows without its bytes being copied.
HAS_MREMAP: bool = not PORTABLE and sys.platform.startswith("linux")
