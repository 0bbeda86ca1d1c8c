"""Line ends: rendering knows `\\n` alone, Windows' wheels and checkouts have `\\r\\n`."""

from __future__ import annotations


def decoded(content: bytes) -> str:
    return content.decode("utf-8").replace("\r\n", "\n")


def encoded_like(text: str, original: bytes | None) -> bytes:
    """`text` with the line ends that the file had before."""
    if original is not None and b"\r\n" in original:
        text = text.replace("\n", "\r\n")
    return text.encode("utf-8")
