#include "data/readers/decode_image.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "data/files/images.h"
#include "data/files/webp.h"

namespace millrace {
namespace {

/// Takes a decoded PNG or WebP within the limits for JPEGs.
bool take(const Result<Image>& decoded, RgbImage& image, std::string& error) {
  if (!decoded || decoded->width * decoded->height > JpegLimits{}.pixels) {
    error = decoded ? "more than 64 megapixels" : to_string(decoded.problems());
    return false;
  }
  image = {.width = static_cast<int>(decoded->width),
           .height = static_cast<int>(decoded->height),
           .kind = decoded->channels == 1 ? JpegKind::Grey : JpegKind::Rgb};
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

bool is_image_name(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 4> kNames{".jpg", ".jpeg", ".png", ".webp"};
  return std::ranges::find(kNames, extension) != kNames.end();
}

bool decode_image(const std::string& bytes, RgbImage& image, std::string& error) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return take(decode_png(bytes, "PNG"), image, error);
  if (is_webp(bytes)) return take(decode_webp(bytes, "WebP", JpegLimits{}.pixels), image, error);
  return decode_jpeg(bytes, image, error);
}

}  // namespace millrace
