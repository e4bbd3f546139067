"""Identifiers: sortable by time, safe in URLs and file names."""

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """``prefix_`` and 26 characters: a version 7 UUID (RFC 9562) in Crockford's base 32."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = [_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"
