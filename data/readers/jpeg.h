// JPEG files to RGB pixels through libjpeg-turbo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class JpegKind { Rgb, Grey, Cmyk };

/// height x width x 3 bytes.
struct Image {
  int width = 0;
  int height = 0;
  JpegKind kind = JpegKind::Rgb;
  std::vector<std::uint8_t> pixels;
};

/// Decodes at the smallest of the codec's scales (1, 1/2, 1/4, 1/8) whose shorter side is still `at_least`
/// pixels; 0: full size. False for anything that is not a whole, undamaged JPEG of at most 64 megapixels;
/// `error` says what. Thread-safe.
bool decode_jpeg(const std::string& bytes, int at_least, Image& image, std::string& error);

}  // namespace millrace
