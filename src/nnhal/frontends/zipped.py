"""Marks and limits of zip files, which identify one without opening it."""

MAGIC, END, END_64 = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x07"
END_BYTES, END_64_BYTES, MOST_COMMENT = 22, 20, 0xFFFF
MOST_BEHIND = END_BYTES + MOST_COMMENT + END_64_BYTES  # bytes at the end of a file that contain its end record
