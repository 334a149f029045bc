// JPEG and PNG in memory, through TurboJPEG and libpng.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// An image as rows of pixels, each of `channels` bytes (1: grey, 3: RGB).
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  int channels = 1;
  std::string pixels;
};

/// Returns whether a file of this name counts as an image: .jpg, .jpeg, .png or .webp, in any case.
bool is_image_name(const std::filesystem::path& path);

/// The same names, for messages.
inline constexpr const char* kImageNames = ".jpg, .jpeg, .png or .webp";

/// Returns whether `bytes` begin as a PNG file does.
bool is_png(std::string_view bytes);

/// Returns the image as JPEG; `quality` is 1 to 100. Throws DataError if the library refuses, for example
/// sides above 65,500.
std::string encode_jpeg(const Image& image, int quality = 75);
std::string encode_png(const Image& image);

inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

/// Lays pixels of image.channels bytes and one of alpha on black, in place: value * alpha / 255, rounded. It
/// is the one rule of transparency, whatever the file's format.
void lay_on_black(Image& image);

/// Decodes an image as it is stored: grey stays grey, anything else becomes RGB. Colour profiles, gamma and
/// the orientation of EXIF change nothing. PNG: samples of 16 bits give their high byte; bytes behind the end
/// are not read. A Problem names `name`. At most kMostPixels, or `most_pixels`: more are refused before
/// memory is taken for them.
Result<Image> decode_jpeg(std::string_view bytes, const std::string& name);
Result<Image> decode_png(std::string_view bytes, const std::string& name,
                         std::int64_t most_pixels = kMostPixels);

}  // namespace millrace
