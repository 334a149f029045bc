// Image files of any kind that is read, to RGB pixels.
#pragma once

#include <filesystem>
#include <string>

#include "data/readers/jpeg.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns whether a file of this name counts as an image: .jpg, .jpeg, .png or .webp, in any case.
bool is_image_name(const std::filesystem::path& path);

/// The same names, for messages.
inline constexpr const char* kImageNames = ".jpg, .jpeg, .png or .webp";

/// Decodes a JPEG, PNG or WebP, as its first bytes say. The name does not count: ImageNet has a PNG called
/// .JPEG. Returns false for anything but a whole image of up to 64 megapixels; then `error` has the reason.
/// Thread-safe.
bool decode_image(const std::string& bytes, RgbImage& image, std::string& error);

}  // namespace millrace
