// WebP images in memory, through libwebp. The library is loaded when the first one is decoded.
#pragma once

#include <string>
#include <string_view>

#include "data/files/images.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns whether `bytes` begin as a WebP file does.
bool is_webp(std::string_view bytes);

/// Returns a Problem if libwebp is not installed.
Status webp_library();

/// Decodes to RGB, by the rules of images.h (lay_on_black). A Problem names `name`: damaged, more than
/// `most_pixels`, an animation, or no libwebp. Thread-safe.
Result<Image> decode_webp(std::string_view bytes, const std::string& name,
                          std::int64_t most_pixels = std::int64_t{1} << 28);

}  // namespace millrace
