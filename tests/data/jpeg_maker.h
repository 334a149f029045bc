// JPEG files for tests, whole and broken ones.
#pragma once

#include <turbojpeg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

inline std::string jpeg_of_pixels(const std::vector<unsigned char>& pixels, int width, int height, int format,
                                  int quality, int flags = 0, int sampling = TJSAMP_444) {
  unsigned char* out = nullptr;
  unsigned long size = 0;
  tjhandle handle = tjInitCompress();
  tjCompress2(handle, pixels.data(), width, 0, height, format, &out, &size,
              format == TJPF_GRAY ? TJSAMP_GRAY : sampling, quality, flags);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  return bytes;
}

/// Stripes; files of different shades have different quantisation tables too.
inline std::string jpeg_of(int width, int height, int format, int shade, int flags = 0) {
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width * height * tjPixelSize[format]));
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<unsigned char>((shade * 40 + static_cast<int>(i) * 7) % 256);
  return jpeg_of_pixels(pixels, width, height, format, 50 + shade % 50, flags);
}

/// One colour: red, green or blue.
inline std::string plain_jpeg(int width, int height, int channel) {
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width * height * 3), 40);
  for (std::size_t i = static_cast<std::size_t>(channel); i < pixels.size(); i += 3) pixels[i] = 220;
  return jpeg_of_pixels(pixels, width, height, TJPF_RGB, 90);
}

/// The file without its segments of one marker (0xdb: quantisation tables, 0xc4: Huffman tables).
inline std::string without_segments(const std::string& jpeg, unsigned char marker) {
  std::string result = jpeg.substr(0, 2);
  std::size_t at = 2;
  while (at + 3 < jpeg.size() && static_cast<unsigned char>(jpeg[at + 1]) != 0xda) {
    const std::size_t length = 2 + static_cast<std::size_t>(static_cast<unsigned char>(jpeg[at + 2]) << 8 |
                                                            static_cast<unsigned char>(jpeg[at + 3]));
    if (static_cast<unsigned char>(jpeg[at + 1]) != marker) result += jpeg.substr(at, length);
    at += length;
  }
  return result + jpeg.substr(at);
}

/// The file with another size in its frame header (markers 0xc0 to 0xc2).
inline std::string with_size(std::string jpeg, int width, int height) {
  std::size_t at = 2;
  while (static_cast<unsigned char>(jpeg[at + 1]) < 0xc0 || static_cast<unsigned char>(jpeg[at + 1]) > 0xc2)
    at += 2 + static_cast<std::size_t>(static_cast<unsigned char>(jpeg[at + 2]) << 8 |
                                       static_cast<unsigned char>(jpeg[at + 3]));
  for (const auto& [offset, value] : {std::pair{5, height}, {7, width}}) {
    jpeg[at + static_cast<std::size_t>(offset)] = static_cast<char>(value >> 8);
    jpeg[at + static_cast<std::size_t>(offset) + 1] = static_cast<char>(value & 255);
  }
  return jpeg;
}

}  // namespace millrace
