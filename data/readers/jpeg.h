// JPEG files to RGB pixels through libjpeg-turbo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class JpegKind { Rgb, Grey, Cmyk };

/// height x width x 3 bytes.
struct RgbImage {
  int width = 0;
  int height = 0;
  JpegKind kind = JpegKind::Rgb;
  std::vector<std::uint8_t> pixels;
};

/// Limits on the resources that a file may ask for. A progressive file of a few kilobytes can hold
/// thousands of empty scans, each of which walks over all pixels: both numbers and their product are
/// bounded.
struct JpegLimits {
  std::int64_t pixels = 64 << 20;
  int scans = 256;  ///< files of common encoders have up to 24
  std::int64_t scan_pixels = std::int64_t{1} << 30;
};

/// Decodes the whole image at full size, with a decoder of its own: the result depends on `bytes` alone,
/// never on what was decoded before. False for anything that is not a whole, undamaged JPEG within `limits`;
/// `error` says what. Thread-safe.
bool decode_jpeg(const std::string& bytes, RgbImage& image, std::string& error,
                 const JpegLimits& limits = {});

/// Start-of-scan markers of a JPEG, thumbnails in its metadata left aside; 0 if it has no marker structure.
int count_scans(const std::string& bytes);

}  // namespace millrace
