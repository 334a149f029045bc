#include "data/readers/decode_image.h"

#include "data/files/images.h"
#include "data/files/webp.h"

namespace millrace {
namespace {

/// Takes a decoded PNG or WebP.
bool take(const Result<Image>& decoded, RgbImage& image, std::string& error) {
  if (!decoded) {
    error = to_string(decoded.problems());
    return false;
  }
  const int width = static_cast<int>(decoded->width), height = static_cast<int>(decoded->height);
  image = {.width = width,
           .height = height,
           .kind = decoded->channels == 1 ? JpegKind::Grey : JpegKind::Rgb,
           .held = {0, 0, width, height}};
  if (image.kind == JpegKind::Rgb) {
    image.pixels.assign(decoded->pixels.begin(), decoded->pixels.end());
    return true;
  }
  image.pixels.reserve(3 * decoded->pixels.size());
  for (const char value : decoded->pixels)
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(value));
  return true;
}

}  // namespace

bool decode_image(const std::string& bytes, RgbImage& image, std::string& error, const JpegLimits& limits,
                  const RegionOf& region) {
  if (is_png(bytes)) return take(decode_png(bytes, "PNG", limits.pixels), image, error);
  if (is_webp(bytes)) return take(decode_webp(bytes, "WebP", limits.pixels), image, error);
  return decode_jpeg(bytes, image, error, limits, region);
}

}  // namespace millrace
