// JPEG files to RGB pixels through libjpeg-turbo.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace millrace {

enum class JpegKind { Rgb, Grey, Cmyk };

/// A rectangle of an image's pixels.
struct PixelRegion {
  int left = 0, top = 0, width = 0, height = 0;
};

/// Returns the pixels that are needed of an image of this size, at least one.
using RegionOf = std::function<PixelRegion(int width, int height)>;

/// An image of height x width pixels, each of 3 bytes.
struct RgbImage {
  int width = 0;
  int height = 0;
  JpegKind kind = JpegKind::Rgb;
  PixelRegion held;                  ///< the part that is in `pixels`
  std::vector<std::uint8_t> pixels;  ///< rows of `held`, perhaps with more after them
};

/// Limits on the resources that decoding a file may need. A progressive file of a few kilobytes can hold
/// thousands of empty scans, each of which walks over all pixels: both numbers and their product are
/// bounded.
struct JpegLimits {
  std::int64_t pixels = 64 << 20;
  int scans = 256;  ///< files of common encoders have up to 24
  std::int64_t scan_pixels = std::int64_t{1} << 30;
};

/// Decodes the image at full size: all of it, or the pixels of `region` and perhaps more. The pixels of
/// `region` have the same values in both cases. Each call uses a new decoder, so that the result depends on
/// `bytes` alone; the memory of `image.pixels` is used again. Returns false for anything but a whole,
/// undamaged JPEG within `limits`, also where the damage is not in the region; then `error` has the reason.
/// Thread-safe.
bool decode_jpeg(const std::string& bytes, RgbImage& image, std::string& error, const JpegLimits& limits = {},
                 const RegionOf& region = {});

/// Returns the number of start-of-scan markers of a JPEG, without those of thumbnails in its metadata.
/// Returns 0 if `bytes` have no marker structure.
int count_scans(const std::string& bytes);

}  // namespace millrace
