"""Token files (data/text/token_file.h) as the benchmarks read them."""
import struct

import numpy


def read(path):
    """Numbers of all sentences, and the place in them at which each begins, with the end."""
    data = open(path, "rb").read()
    size, sentences, tokens = struct.unpack_from("<IQQ", data, 12)
    numbers = numpy.frombuffer(data, {2: "<u2", 4: "<u4"}[size], tokens, 128)
    return numbers, numpy.frombuffer(data, "<u8", sentences + 1, 128 + (tokens * size + 7) // 8 * 8)
