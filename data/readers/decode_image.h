// Image files of any kind that is read, to RGB pixels.
#pragma once

#include <string>

#include "data/files/images.h"
#include "data/readers/jpeg.h"
#include "runtime/base/result.h"

namespace millrace {

/// Decodes a JPEG, PNG or WebP, according to its first bytes. The name does not count: ImageNet has a PNG
/// called .JPEG. Returns false for anything but a whole image within `limits`; then `error` has the reason.
/// For a JPEG it may decode only the pixels that `region` needs (decode_jpeg). Thread-safe.
bool decode_image(const std::string& bytes, RgbImage& image, std::string& error,
                  const JpegLimits& limits = {}, const RegionOf& region = {});

}  // namespace millrace
