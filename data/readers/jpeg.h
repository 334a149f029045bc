// JPEG files to RGB pixels through libjpeg-turbo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class JpegKind { Rgb, Grey, Cmyk };

/// An image of height x width pixels, each of 3 bytes.
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

/// Decodes the whole image at full size. Each call uses a new decoder, so that the result depends on `bytes`
/// alone. Returns false for anything but a whole, undamaged JPEG within `limits`; then `error` has the
/// reason. Thread-safe.
bool decode_jpeg(const std::string& bytes, RgbImage& image, std::string& error,
                 const JpegLimits& limits = {});

/// Returns the number of start-of-scan markers of a JPEG, without those of thumbnails in its metadata.
/// Returns 0 if `bytes` have no marker structure.
int count_scans(const std::string& bytes);

}  // namespace millrace
