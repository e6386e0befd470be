"""Status codes of the C interface as Python exceptions, with the library's own messages."""

from __future__ import annotations

import re

from . import _c

_EXCEPTIONS = {
    _c.INVALID_ARGUMENT: ValueError,
    _c.UNSUPPORTED: NotImplementedError,
    _c.WORKSPACE_TOO_SMALL: ValueError,
    _c.OUT_OF_MEMORY: MemoryError,
}


def failure(code: int, message: str) -> Exception:
    """The exception for a status code: ValueError, NotImplementedError, MemoryError, otherwise RuntimeError."""
    return _EXCEPTIONS.get(code, RuntimeError)(message or f"tessera: status {code} without a message")


def status_failure(code: int, status: _c.Status) -> Exception:
    return failure(code, status.message.decode("utf-8", "replace"))


def renamed(error: Exception, names: dict[str, str]) -> Exception:
    """The same error with the library's words for arguments replaced by the caller's, all at once."""
    words = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    return type(error)(words.sub(lambda word: names[word[0]], str(error)))
