"""Real images and files, small ones, as many different ones as a test needs."""

import struct
import zlib

PDF = b"%PDF-1.4\n1 0 obj <</Type/Catalog>> endobj\ntrailer <</Root 1 0 R>>\n%%EOF\n"
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xd9"
GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"
WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00/\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"


def png(number: int = 0, *, filled_to: int = 0) -> bytes:
    """One pixel, of another colour for each number; ``filled_to`` so many bytes, with a chunk that viewers skip."""
    pixel = zlib.compress(b"\x00" + struct.pack(">I", number)[1:])
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    tail = _chunk(b"IDAT", pixel) + _chunk(b"IEND", b"")
    left = filled_to - len(head) - len(tail) - 12
    return head + (_chunk(b"juNk", bytes(left)) if left >= 0 else b"") + tail


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
